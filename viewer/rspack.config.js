// Bundles Neuroglancer's npm package into dist/: ES modules, two workers and WebAssembly, without references to other
// hosts.
import path from "node:path";
import { rspack } from "@rspack/core";

const here = import.meta.dirname;

// Excluded data sources: services with an API of their own, which mostly need a login. Sources that read files over
// HTTP stay.
const LEFT_OUT = [
  ...["boss", "brainmaps", "deepzoom", "dvid", "graphene", "nggraph", "render"].map((name) => `datasource/${name}`),
  ...["middleauth", "ngauth"].map((name) => `kvstore/${name}`),
];

// Icons that Neuroglancer takes from an unpublished version of ikonate, with their replacements in ikonate on npm.
const ICONS = { "code-alt": "edit", "controls-alt": "controls", layers: "stack" };

export default {
  mode: "production",
  target: ["web", "es2022"],
  context: here,
  entry: { main: "./main.js" },
  output: {
    path: path.join(here, "dist"),
    // The content of a file with a hash in its name never changes, so the server lets browsers cache it forever.
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
      // Some imports in the package omit the file extension.
      { test: /\.js$/, resolve: { fullySpecified: false } },
    ],
  },
  plugins: [new rspack.HtmlRspackPlugin({ template: "./index.html", scriptLoading: "module" })],
  performance: { hints: false },
};
