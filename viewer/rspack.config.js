// How Neuroglancer's npm package becomes dist/: ES modules, two workers, WebAssembly, no reference to any other host.
import path from "node:path";
import { rspack } from "@rspack/core";

const here = import.meta.dirname;

// Sources that are services of their own, most of which log in elsewhere. What reads files over HTTP stays.
const LEFT_OUT = [
  ...["boss", "brainmaps", "deepzoom", "dvid", "graphene", "nggraph", "render"].map((name) => `datasource/${name}`),
  ...["middleauth", "ngauth"].map((name) => `kvstore/${name}`),
];

// Icons that Neuroglancer takes from an unpublished state of ikonate, and what ikonate on npm has in their place.
const ICONS = { "code-alt": "edit", "controls-alt": "controls", layers: "stack" };

export default {
  mode: "production",
  target: ["web", "es2022"],
  context: here,
  entry: { main: "./main.js" },
  output: {
    path: path.join(here, "dist"),
    // A name with a hash never changes its content: the server lets browsers keep it for ever.
    filename: "[name].[contenthash:16].js",
    chunkFilename: "[name].[contenthash:16].js",
    cssFilename: "[name].[contenthash:16].css",
    cssChunkFilename: "[name].[contenthash:16].css",
    assetModuleFilename: "[name].[contenthash:16][ext]",
    publicPath: "auto",
    clean: true,
  },
  resolve: {
    conditionNames: ["...", ...LEFT_OUT.map((name) => `neuroglancer/${name}:disabled`)],
    alias: Object.fromEntries(
      Object.entries(ICONS).map(([wanted, there]) => [`ikonate/icons/${wanted}.svg`, `ikonate/icons/${there}.svg`]),
    ),
  },
  module: {
    rules: [
      { test: /\.css$/, type: "css" },
      { test: /\.svg$/, resourceQuery: /raw/, type: "asset/source" },
      { test: /\.(wasm|html)$/, dependency: "url", type: "asset/resource" },
      // The package's imports name files without an extension in places.
      { test: /\.js$/, resolve: { fullySpecified: false } },
    ],
  },
  plugins: [new rspack.HtmlRspackPlugin({ template: "./index.html", scriptLoading: "module" })],
  performance: { hints: false },
};
