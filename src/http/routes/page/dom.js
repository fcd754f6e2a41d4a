// Helpers that build DOM elements.

/**
 * Builds an element. `attributes` may have `text`, `on` (listeners by event) and any HTML attribute. The values
 * `false`, `null` and `undefined` omit an attribute; `true` sets it to the empty string.
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

/** Wraps `f` so that it runs only on the first call. */
export function once(f) {
  let done = false;
  return () => {
    if (done) return;
    done = true;
    f();
  };
}

/** Returns a function that calls `f` soon, once for many calls. */
export function later(f, delay = 150) {
  let timer = null;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      f();
    }, delay);
  };
}

/**
 * Makes `elements` the children of a list. An element that stays is not taken out of the page, because a press on it
 * would then be no click.
 */
export function arrange(list, elements) {
  const kept = new Set(elements);
  for (const child of [...list.children]) if (!kept.has(child)) child.remove();
  let at = list.firstElementChild;
  for (const element of elements) {
    if (element === at) at = at.nextElementSibling;
    else list.insertBefore(element, at);
  }
}

/** Copies a text to the clipboard. Resolves to false if the browser does not allow it. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers provide the clipboard only in a secure context, but let a page copy what is selected in it.
    const field = h("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    const focused = document.activeElement;
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    focused?.focus({ preventScroll: true });
    return isCopied;
  }
}

/** Builds a button that copies `text()` to the clipboard and confirms it with the words `done`. */
export function copyButton(label, text, caption = "Copy", done = "Copied") {
  const button = h("button", { type: "button", class: "quiet", "aria-label": label, text: caption });
  button.addEventListener("click", async () => {
    if (await copy(text())) button.textContent = done;
    else {
      // The reader can copy what is selected.
      const target = button.parentElement?.querySelector("code");
      if (target) getSelection().selectAllChildren(target);
      button.textContent = target ? "Selected" : "Copy failed";
    }
    setTimeout(() => (button.textContent = caption), 1500 + 50 * (button.textContent.length - "Copied".length));
  });
  return button;
}

/** Builds a group of radio buttons that looks like one control. `change` receives the chosen value. */
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
