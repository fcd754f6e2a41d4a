// Neuroglancer with the data sources that rspack.config.js keeps. Its whole state is in the URL's fragment.
import "neuroglancer";
import { setupDefaultViewer } from "neuroglancer/unstable/ui/default_viewer_setup.js";

// Also sets `window.viewer`, which the browser's console and the tests use.
setupDefaultViewer();
