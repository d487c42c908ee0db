// A place to write code: a textarea, with the same text in colours behind it.

import { highlighted } from "../text/highlight.js";

export class Editor {
  #area;
  #shown;

  /** `run` is called for Ctrl+Enter, `changed` for every change. */
  constructor(area, shown, { run, changed }) {
    this.#area = area;
    this.#shown = shown;
    area.addEventListener("input", () => this.#draw() ?? changed(area.value));
    area.addEventListener("keydown", (event) => this.#typed(event, run));
  }

  get code() {
    return this.#area.value;
  }

  set code(text) {
    this.#area.value = text;
    this.#draw();
  }

  #draw() {
    this.#shown.replaceChildren(highlighted(this.#area.value, "python"), "\n"); // the last line has a height, too
  }

  #typed(event, run) {
    if (event.key !== "Enter") return;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      run();
    } else if (!event.isComposing && !event.shiftKey) this.#indent(event);
  }

  /** A new line begins where the one before it began; deeper after a colon. */
  #indent(event) {
    const { value, selectionStart } = event.target;
    const line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
    const indent = /^ */.exec(line)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
    if (!indent) return;
    event.preventDefault();
    document.execCommand("insertText", false, `\n${indent}`); // the only way that leaves undo as it is
  }
}
