// Pointer, wheel and touch gestures on a plane, as map viewers have them.

/** Movement, in pixels, that makes a press a drag. */
const SLACK = 4;
const DOUBLE_CLICK = 350;

/** Returns the wheel movement in pixels. */
function wheelPixels(event) {
  const each = [1, 33, 400][event.deltaMode] ?? 1;
  // Browsers turn a vertical movement with Shift into a horizontal one.
  return (event.deltaY || event.deltaX) * each;
}

/**
 * Reports gestures on `element` to `on`, with points in CSS pixels within the element:
 *
 * - `pan(dx, dy)`, `zoom(factor, point)` and `step(count)`, which goes through the planes;
 * - `click(point)` and `doubleClick(point)`;
 * - `hover(point)`, with null when the pointer leaves;
 * - `passed(kind)` when a `wheel` or a `touch` scrolls the page although the pointer is here.
 *
 * The wheel and one finger scroll the page unless `isEager()`; two fingers, and the wheel with Ctrl, always act here.
 */
export function listen(element, on, isEager) {
  let press = null;
  let last = { time: 0, point: [0, 0] };
  const pointOf = ({ clientX, clientY }) => {
    const box = element.getBoundingClientRect();
    return [clientX - box.left, clientY - box.top];
  };
  const far = ([x, y], [a, b], most) => Math.hypot(x - a, y - b) > most;
  const clicked = (point, time) => {
    const isDouble = time - last.time < DOUBLE_CLICK && !far(point, last.point, 12);
    last = { time: isDouble ? 0 : time, point };
    if (isDouble) on.doubleClick(point);
    else on.click(point);
  };

  // Mouse and pen. Touches are handled below, because only their events can stop the page from scrolling.
  element.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0) return;
    element.focus({ preventScroll: true });
    element.setPointerCapture(event.pointerId);
    press = { start: pointOf(event), at: pointOf(event), isDrag: false };
  });
  element.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const point = pointOf(event);
    if (press) {
      if (!press.isDrag && !far(point, press.start, SLACK)) return;
      if (!press.isDrag) element.classList.add("grabbed");
      press.isDrag = true;
      on.pan(point[0] - press.at[0], point[1] - press.at[1]);
      press.at = point;
    }
    on.hover(point);
  });
  const release = (event) => {
    if (!press || event.pointerType === "touch") return;
    const { isDrag } = press;
    press = null;
    element.classList.remove("grabbed");
    if (!isDrag && event.type === "pointerup") clicked(pointOf(event), event.timeStamp);
  };
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) element.addEventListener(end, release);
  element.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && !press && on.hover(null));

  let rest = 0;
  element.addEventListener("wheel", (event) => {
    const pixels = wheelPixels(event);
    if (pixels === 0) return;
    const steps = event.shiftKey || event.altKey;
    const zooms = event.ctrlKey || event.metaKey;
    if (!steps && !zooms && !isEager()) {
      on.passed("wheel");
      return;
    }
    event.preventDefault();
    if (steps) {
      // A notch of a wheel is one plane; a trackpad adds up small movements.
      rest = Math.sign(rest) === Math.sign(pixels) ? rest + pixels : pixels;
      const count = Math.abs(pixels) >= 50 ? Math.sign(pixels) : Math.trunc(rest / 30);
      if (count) {
        rest = 0;
        on.step(count);
      }
      return;
    }
    // Browsers report a pinch on a trackpad as small wheel movements with Ctrl.
    const speed = event.ctrlKey && Math.abs(pixels) < 50 ? 0.012 : 0.0022;
    on.zoom(2 ** (-Math.max(-240, Math.min(240, pixels)) * speed * 1.5), pointOf(event));
  }, { passive: false });

  // Touch.
  let touch = null;
  const middle = (touches) => {
    const points = [...touches].map(pointOf);
    const sum = points.reduce(([x, y], [a, b]) => [x + a, y + b], [0, 0]);
    const apart = points.length > 1 ? Math.hypot(points[0][0] - points[1][0], points[0][1] - points[1][1]) : 0;
    return { count: points.length, point: sum.map((n) => n / points.length), apart };
  };
  element.addEventListener("touchstart", (event) => {
    const now = middle(event.targetTouches);
    if (now.count > 1) event.preventDefault();
    touch = { ...now, start: touch?.start ?? now.point, moved: Boolean(touch?.moved) || now.count > 1, time: touch?.time ?? event.timeStamp };
  }, { passive: false });
  element.addEventListener("touchmove", (event) => {
    if (!touch) return;
    const now = middle(event.targetTouches);
    if (far(now.point, touch.start, SLACK * 2)) touch.moved = true;
    if (now.count === 1 && !isEager("touch")) {
      if (touch.moved) on.passed("touch");
      return;
    }
    // A movement with which the page already scrolls cannot be stopped.
    if (event.cancelable) event.preventDefault();
    if (now.count === touch.count && touch.moved) {
      on.pan(now.point[0] - touch.point[0], now.point[1] - touch.point[1]);
      if (touch.apart && now.apart) on.zoom(now.apart / touch.apart, now.point);
    }
    Object.assign(touch, now);
  }, { passive: false });
  element.addEventListener("touchend", (event) => {
    if (!touch) return;
    if (event.targetTouches.length) {
      Object.assign(touch, middle(event.targetTouches));
      return;
    }
    const { moved, start, time } = touch;
    touch = null;
    if (moved || event.timeStamp - time > 600) return;
    // Otherwise the browser also reports a click, and zooms at the second one.
    event.preventDefault();
    element.focus({ preventScroll: true });
    clicked(start, event.timeStamp);
  });
  element.addEventListener("touchcancel", () => (touch = null));
}
