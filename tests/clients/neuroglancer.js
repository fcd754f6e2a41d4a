// Runs in Neuroglancer's page: what neuroglancer.py asks of `window.viewer`.
window.harness = (() => {
  const frame = () => new Promise((resolve) => setTimeout(resolve, 4));

  // Waits until `ready()` says so, and says why it gave up otherwise.
  async function until(patience, ready) {
    const begun = performance.now();
    let asked = begun;
    for (;;) {
      const answer = ready();
      if (answer !== undefined) return answer;
      const now = performance.now();
      if (now > begun + patience) return { error: `not loaded in ${patience} ms: ${progress()}` };
      if (now > asked + 250) {
        asked = now;
        const { failed, pending } = await chunks();
        if (failed > 0 && pending === 0) return { error: `${failed} chunks failed` };
      }
      await frame();
    }
  }

  // How many chunks have failed and how many are still to come: counts by state (3 downloading, 4 queued, 6 failed) and
  // three tiers, as chunk_manager/base.ts lays them out.
  async function chunks() {
    const count = (statistics, state) => [0, 1, 2].reduce((sum, tier) => sum + statistics[3 * (3 * state + tier)], 0);
    let [failed, pending] = [0, 0];
    for (const statistics of (await viewer.chunkQueueManager.getStatistics()).values()) {
      failed += count(statistics, 6);
      pending += count(statistics, 3) + count(statistics, 4);
    }
    return { failed, pending };
  }

  // Whether the panel knows which sources it shows, and has all of their chunks.
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

  return {
    // Replaces everything by one layer; the dimensions it has and where they end.
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
        const space = viewer.coordinateSpace.value;
        const { layer } = layers()[0];
        if (!space.valid || space.rank === 0 || !layer?.isReady || layer.renderLayers.length === 0) return undefined;
        const { names, units, scales, bounds } = space;
        return {
          names: [...names],
          units: [...units],
          scales: [...scales],
          lower: [...bounds.lowerBounds],
          upper: [...bounds.upperBounds],
        };
      });
    },

    // Shows the plane of two dimensions at a position, a few pixels for each element, and waits for all of its chunks.
    async look(dimensions, position, patience, pixels = 4) {
      const navigation = viewer.navigationState;
      viewer.displayDimensions.restoreState(dimensions);
      viewer.position.value = Float32Array.from(position);
      const { value: shown } = navigation.displayDimensionRenderInfo;
      const { canonicalVoxelFactors: factors, displayRank } = shown;
      const names = [...shown.displayDimensionIndices].slice(0, displayRank).map((at) => viewer.coordinateSpace.value.names[at]);
      navigation.zoomFactor.value = Math.min(...factors.slice(0, displayRank)) / pixels;
      const waited = await until(patience, () => {
        const error = failure();
        if (error !== undefined) return { error };
        return complete() ? {} : undefined;
      });
      if (waited.error) return waited;
      const { width, height } = panel().renderViewport;
      return {
        names,
        pixels_per_unit: [...factors].map((factor) => factor / navigation.zoomFactor.value),
        extent: [width, height],
      };
    },

    // What is at positions, and the colours of pixels relative to the panel's middle.
    read(positions, pixels) {
      const { layer } = layers()[0];
      const values = positions.map((position) => {
        const at = Float32Array.from(position);
        for (const renderLayer of layer.renderLayers) {
          const value = renderLayer.getValueAt?.(at);
          if (value !== null && value !== undefined) return plain(value);
        }
        return null;
      });
      viewer.display.draw();
      const { gl } = viewer.display;
      const { canvas } = gl;
      const { width, height } = canvas;
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
