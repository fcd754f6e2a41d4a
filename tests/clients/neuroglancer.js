// Runs in Neuroglancer's page and gives neuroglancer.py access to `window.viewer`.
window.harness = (() => {
  const frame = () => new Promise((resolve) => setTimeout(resolve, 4));

  // Waits until `ready()` returns a value and returns it. Returns an error after `patience` milliseconds, or if chunks
  // failed and none is pending.
  async function until(patience, ready) {
    const started = performance.now();
    let checked = started;
    for (;;) {
      const answer = ready();
      if (answer !== undefined) return answer;
      const now = performance.now();
      if (now > started + patience) return { error: `not loaded in ${patience} ms: ${progress()}` };
      if (now > checked + 250) {
        checked = now;
        const { failed, pending } = await chunks();
        if (failed > 0 && pending === 0) return { error: `${failed} chunks failed` };
      }
      await frame();
    }
  }

  // Returns the numbers of failed and of pending chunks. The statistics are counts by state (3 downloading, 4 queued,
  // 6 failed) and three tiers, in the layout of chunk_manager/base.ts.
  async function chunks() {
    const count = (statistics, state) => [0, 1, 2].reduce((sum, tier) => sum + statistics[3 * (3 * state + tier)], 0);
    const visible = [...(panel()?.sliceView.visibleLayers.values() ?? [])].flatMap(({ visibleSources }) => visibleSources);
    const shown = new Set(visible.map(({ source }) => source));
    let [failed, pending] = [0, 0];
    for (const [source, statistics] of await viewer.chunkQueueManager.getStatistics()) {
      if (!shown.has(source)) continue;
      failed += count(statistics, 6);
      pending += count(statistics, 3) + count(statistics, 4);
    }
    return { failed, pending };
  }

  // Returns true if the panel knows which sources it shows and the viewer has all of their chunks.
  function complete() {
    const slices = panel()?.sliceView;
    if (slices === undefined || !viewer.isReady()) return false;
    const shown = [...slices.visibleLayers.values()];
    return shown.length > 0 && shown.every(({ visibleSources }) => visibleSources.length > 0);
  }

  const layers = () => viewer.layerManager.managedLayers;

  function progress() {
    const sources = layers().flatMap(({ layer }) => layer?.dataSources ?? []);
    const loading = sources.filter(({ loadState }) => loadState === undefined).length;
    return `${loading} of ${sources.length} sources, position ${viewer.navigationState.position.value}`;
  }

  function failure() {
    for (const { layer } of layers()) {
      for (const { loadState, messages } of layer?.dataSources ?? []) {
        if (loadState?.error !== undefined) return `the source fails: ${chain(loadState.error)}`;
        for (const message of messages ?? []) if (message.severity === 2) return `the source says: ${message.message}`;
        for (const { messages } of loadState?.subsources ?? []) {
          for (const message of messages ?? []) if (message.severity === 2) return `the source says: ${message.message}`;
        }
      }
    }
    return undefined;
  }

  const chain = (error) => (error?.cause ? `${error.message}: ${chain(error.cause)}` : (error?.message ?? `${error}`));

  const plain = (value) => {
    if (value === null || value === undefined) return null;
    if (Array.isArray(value)) return plain(value[0]);
    if (typeof value === "bigint") return value.toString();
    if (typeof value === "number") return Number.isFinite(value) ? value : `${value}`;
    if (value.value !== undefined) return plain(value.value);
    return value.toString();
  };

  const panel = () => [...viewer.display.panels].find((panel) => panel.sliceView !== undefined);

  // The suffix ' marks a dimension that is local to the layer, and ^ a channel dimension that the shader receives.
  const isLocal = (name) => name.endsWith("'");
  const isChannel = (name) => name.endsWith("^");

  // Converts a position in the order of `names` to the order of the dimensions that all layers share. Dimensions that
  // are not in `names` keep their current position.
  function positionOf(names, position) {
    const of = (space, fallback) =>
      Float32Array.from(space.names, (name, at) => (names.includes(name) ? position[names.indexOf(name)] : fallback[at]));
    return of(viewer.coordinateSpace.value, viewer.position.value);
  }

  return {
    // Replaces all layers by one. Returns the dimensions of its source, with unit, scale and bounds, or an error.
    async load(layer, patience) {
      viewer.state.reset();
      viewer.state.restoreState({
        layers: [layer],
        layout: "xy",
        showAxisLines: false,
        showScaleBar: false,
        showDefaultAnnotations: false,
        crossSectionBackgroundColor: "#000000",
        prefetch: false,
        concurrentDownloads: 32,
      });
      return until(patience, () => {
        const error = failure();
        if (error !== undefined) return { error };
        const { layer } = layers()[0];
        if (!viewer.coordinateSpace.value.valid || !layer?.isReady || layer.renderLayers.length === 0) return undefined;
        const { names, units, scales, bounds } = layer.dataSources[0].loadState.transform.outputSpace.value;
        return names.map((name, at) => ({
          name,
          kind: isLocal(name) ? "local" : isChannel(name) ? "channel" : "global",
          unit: units[at],
          scale: scales[at],
          lower: bounds.lowerBounds[at],
          upper: bounds.upperBounds[at],
        }));
      });
    },

    // Shows the plane of the dimensions `display` at a position and waits for all of its chunks. Selects the level
    // whose elements are `steps` long in these dimensions, and zooms so that an element takes at least `pixels` pixels.
    // Returns the names of the displayed dimensions, their pixels per unit and the extent of the panel, or an error.
    async look({ names, display, position, steps, pixels }, patience) {
      const navigation = viewer.navigationState;
      viewer.displayDimensions.restoreState(display);
      viewer.position.value = positionOf(names, position);
      const { layer } = layers()[0];
      const local = layer.localCoordinateSpace.value;
      layer.localPosition.value = Float32Array.from(local.names, (name) => position[names.indexOf(name)]);
      const { canonicalVoxelFactors: factors, displayDimensionIndices } = navigation.displayDimensionRenderInfo.value;
      const shown = display.map((_, at) => viewer.coordinateSpace.value.names[displayDimensionIndices[at]]);
      const lengths = shown.map((name, at) => factors[at] * steps[display.indexOf(name)]);
      const zoom = Math.min(...lengths) / pixels;
      navigation.zoomFactor.value = zoom;
      for (const renderLayer of layer.renderLayers) {
        if (renderLayer.renderScaleTarget) renderLayer.renderScaleTarget.value = Math.max(...lengths) / zoom;
      }
      const waited = await until(patience, () => {
        const error = failure();
        if (error !== undefined) return { error };
        return complete() ? {} : undefined;
      });
      if (waited.error) return waited;
      const { logicalWidth, logicalHeight } = panel().renderViewport;
      return {
        names: shown,
        pixels_per_unit: shown.map((_, at) => factors[at] / zoom),
        extent: [logicalWidth, logicalHeight],
      };
    },

    // Returns the values at `positions` and the colours at `pixels`, which are relative to the middle of the panel.
    read(names, positions, pixels) {
      const { layer } = layers()[0];
      const values = positions.map((position) => {
        const at = positionOf(names, position);
        for (const renderLayer of layer.renderLayers) {
          const value = renderLayer.getValueAt?.(at);
          if (value !== null && value !== undefined) return plain(value);
        }
        return null;
      });
      viewer.display.draw();
      const { gl } = viewer.display;
      const { width, height } = gl.canvas;
      const image = new Uint8Array(4 * width * height);
      gl.bindFramebuffer(gl.FRAMEBUFFER, null);
      gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, image);
      const { canvasRelativeLogicalLeft: left, canvasRelativeLogicalTop: top, renderViewport } = panel();
      const colours = pixels.map(([x, y]) => {
        const column = Math.floor(left + renderViewport.logicalWidth / 2 + x);
        const row = Math.floor(top + renderViewport.logicalHeight / 2 + y);
        const at = 4 * ((height - 1 - row) * width + column);
        return [...image.subarray(at, at + 3)];
      });
      return { values, pixels: colours };
    },
  };
})();
