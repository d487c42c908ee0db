// Elements of the page. Whatever is shown becomes a text node, never markup.

export const $ = (id) => document.getElementById(id);

/** Makes an element: `of("button.drop", { title: "Delete" }, "×")`. Children are nodes or text. */
export function of(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const made = Object.assign(document.createElement(tag), properties);
  if (classes.length) made.classList.add(...classes);
  made.append(...children.filter((child) => child != null));
  return made;
}

/** A button that does one thing. */
export function button(kind, label, act, properties = {}) {
  const made = of(`button${kind}`, { type: "button", ...properties }, label);
  made.addEventListener("click", act);
  return made;
}

/** A button that copies what `text()` returns. */
export function copier(text, label = "Copy") {
  const made = button(".quiet.copy", label, async () => {
    made.textContent = (await copied(text())) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (made.textContent = label), 1500);
  });
  return made;
}

/** Copies text; where the browser has no clipboard for pages (plain HTTP), by a selection. Says if it could. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const place = of("textarea.unseen", { value: text, readOnly: true });
    document.body.append(place);
    place.select();
    const could = document.execCommand("copy");
    place.remove();
    return could;
  }
}

/** 1,234 bytes as people read it. */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  const unit = bytes < 1e6 ? ["kB", 1e3] : bytes < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${(bytes / unit[1]).toFixed(bytes / unit[1] < 10 ? 1 : 0)} ${unit[0]}`;
}

/** A time that has passed. */
export function ago(seconds) {
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `${Math.floor(seconds / 3600)} h ago`;
}
