// Building elements.

/**
 * An element. `attributes`: `class`, `text`, `on` (listeners by event) and any attribute; `false`, `null` and
 * `undefined` leave one out, `true` sets it empty.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, f] of Object.entries(value)) element.addEventListener(event, f);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** `f` that runs the first time only. */
export function once(f) {
  let done = false;
  return () => {
    if (done) return;
    done = true;
    f();
  };
}

/** A button that copies `text()` and says so. */
export function copyButton(label, text) {
  const button = h("button", { type: "button", class: "quiet", "aria-label": label, text: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      // Without a secure context there is no clipboard: select the text for the person to copy.
      const target = button.parentElement?.querySelector("code");
      if (target) getSelection().selectAllChildren(target);
      button.textContent = target ? "Selected" : "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** A group of radio buttons that looks like one control; `change` gets the value chosen. */
export function choice(name, label, options, value, change) {
  const inputs = options.map(([key, text]) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name, value: key, checked: key === value, on: { change: () => change(key) } }),
      h("span", { text }),
    ),
  );
  return h("fieldset", { class: "choice" }, h("legend", { class: "unseen", text: label }), inputs);
}
