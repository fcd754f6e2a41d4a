// Viewers beside Neuroglancer that read OME-NGFF from a URL: links to those on the web, and code for napari.

import { h } from "./dom.js";
import { publicViewersAreBlocked } from "./neuroglancer_link.js";
import { tellsToken } from "./neuroglancer_state.js";
import { encodeName, rebase, root, token } from "./server.js";
import { kindOf } from "./volume.js";

/** Pages that open the address of an OME-NGFF image, and what they do. They are requested only if a link is followed. */
const PAGES = [
  ["Vizarr", "https://hms-dbmi.github.io/vizarr/", "shows the image"],
  ["OME-NGFF validator", "https://ome.github.io/ome-ngff-validator/", "checks the metadata"],
];

/** Returns the address of a pyramid as OME-NGFF 0.5; null for anything else. */
function ngff(info) {
  if (info.kind !== "multiscale" || !info.urls.zarr3) return null;
  const address = rebase(info.urls.zarr3, info).split("?")[0].replace(/\/$/, "");
  // Programs append the names of files to the address, which therefore has the token in its path.
  return token === null ? address : address.replace(root.href, `${root.href}token/${encodeName(token)}/`);
}

/**
 * Returns links to the viewers that can read the image from this server. They get its address, so there are none for a
 * private image: its token would reach other hosts.
 */
export function viewerLinks(info) {
  const address = ngff(info);
  if (address === null || tellsToken || publicViewersAreBlocked() !== null) return [];
  return PAGES.map(([name, page, what]) =>
    h("a", {
      href: `${page}?source=${encodeURIComponent(address)}`, target: "_blank", rel: "noopener noreferrer",
      title: `The page ${new URL(page).host} ${what}`, text: name,
    }),
  );
}

/**
 * Returns Python that shows the volume in napari; null if napari cannot read it. `opened` is Python that opens the
 * finest level with zarr, null if that cannot read it. `name` is the name of the volume as a Python literal. `limits`
 * are those of the contrast, which napari itself takes from the extremes.
 */
export function napari(info, volume, opened, name, limits = null) {
  const address = ngff(info);
  const isLabels = kindOf(info, volume, null) === "segmentation";
  const add = isLabels ? "add_labels" : "add_image";
  if (address === null) {
    if (info.kind === "multiscale" || opened === null) return null;
    const { channel, rank, voxelSize } = volume;
    const options = [`name=${name}`];
    const sizes = voxelSize.filter((_, axis) => axis !== channel || isLabels).reverse();
    // NumPy's order of the axes is the reverse of N5's.
    if (sizes.some((size) => size !== null)) options.push(`scale=[${sizes.map((size) => size ?? 1).join(", ")}]`);
    if (channel >= 0 && !isLabels) options.push(`channel_axis=${rank - 1 - channel}`);
    if (limits && limits[0] < limits[1] && !isLabels) options.push(`contrast_limits=[${limits.join(", ")}]`);
    return `import napari, zarr  # pip install "napari[all]" zarr fsspec aiohttp

array = ${opened}
viewer = napari.Viewer()
viewer.${add}(array, ${options.join(", ")})
napari.run()
`;
  }
  // The plug-in calls a pyramid of labels "data".
  const options = isLabels ? `{**options, "name": ${name}}` : "options";
  return `import napari  # pip install "napari[all]" napari-ome-zarr
from napari_ome_zarr import napari_get_reader

url = ${JSON.stringify(address)}
viewer = napari.Viewer()
for data, options, *_ in napari_get_reader(url)(url):
    viewer.${add}(data, **${options})
napari.run()
`;
}
