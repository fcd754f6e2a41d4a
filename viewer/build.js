// Runs the bundler, then adds the licences and compressed copies of each file, which the server sends as they are.
import { readdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";
import { rspack } from "@rspack/core";
import config from "./rspack.config.js";

const dist = config.output.path;

const stats = await promisify(rspack)(config);
if (stats.hasErrors()) {
  console.error(stats.toString({ all: false, errors: true }));
  process.exit(1);
}

// The packages whose code is in the bundle: Neuroglancer, its dependencies, and all others that the bundler used.
const installed = path.join(config.context, "node_modules");
const neuroglancer = JSON.parse(await readFile(path.join(installed, "neuroglancer/package.json"), "utf8"));
const packages = new Set(["neuroglancer", ...Object.keys(neuroglancer.dependencies)]);
for (const { nameForCondition } of stats.toJson({ all: false, modules: true }).modules) {
  const [, name] = /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(nameForCondition ?? "") ?? [];
  if (name) packages.add(name);
}
let licences = "This viewer contains:\n";
for (const directory of [...packages].sort().map((name) => path.join(installed, name))) {
  const { name, version, license } = JSON.parse(await readFile(path.join(directory, "package.json"), "utf8"));
  licences += `\n${"=".repeat(80)}\n${name} ${version}, ${license}\n`;
  for (const file of (await readdir(directory)).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file)).sort()) {
    licences += `\n${await readFile(path.join(directory, file), "utf8")}`;
  }
}
await writeFile(path.join(dist, "licences.txt"), licences);

const sizes = { plain: 0, gzip: 0, brotli: 0 };
const files = (await readdir(dist)).sort();
await Promise.all(
  files.map(async (file) => {
    const plain = await readFile(path.join(dist, file));
    const copies = {
      gz: await promisify(gzip)(plain, { level: 9 }),
      br: await promisify(brotliCompress)(plain, {
        params: { [constants.BROTLI_PARAM_QUALITY]: 10, [constants.BROTLI_PARAM_SIZE_HINT]: plain.length },
      }),
    };
    sizes.plain += plain.length;
    sizes.gzip += copies.gz.length;
    sizes.brotli += copies.br.length;
    for (const [ending, copy] of Object.entries(copies)) {
      await writeFile(path.join(dist, `${file}.${ending}`), copy);
    }
  }),
);

const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
console.log(
  `Neuroglancer ${neuroglancer.version} in ${path.relative("", dist)}/: ${files.length} files, ${mebibytes(sizes.plain)} ` +
    `(${mebibytes(sizes.gzip)} as gzip, ${mebibytes(sizes.brotli)} as brotli)`,
);
