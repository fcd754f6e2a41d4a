// Neuroglancer with the data sources that rspack.config.js leaves in; its whole state is in the URL's fragment.
import "neuroglancer";
import { setupDefaultViewer } from "neuroglancer/unstable/ui/default_viewer_setup.js";

// As `window.viewer`, which the browser's console and the tests use.
setupDefaultViewer();
