// What code yields, as it comes. All it says is set as text, and pictures are data URLs that the gateway has checked.

import { of } from "../elements.js";
import { figure } from "./figure.js";
import { interactiveFigure } from "./interactive.js";
import { partsOf, sortable, tableOf } from "./table.js";

const LABELS = { stdout: "", logs: "", result: "value" };

/** What a terminal would show of a line: a carriage return starts it again, and one at the end waits for what follows. */
const shown = (line, isWhole) => {
  let end = line.length;
  while (end && line[end - 1] === "\r") end -= 1;
  const start = end ? line.lastIndexOf("\r", end - 1) + 1 : 0;
  return line.slice(start, isWhole ? end : undefined);
};

const folded = (text) => text.split("\n").map((line, at, all) => shown(line, at < all.length - 1)).join("\n");

export class Output {
  #box;
  #line = ""; // the last line of the last block, as it was printed: more may still come
  #clearsNext = false;

  constructor(box) {
    this.#box = box;
  }

  clear() {
    this.#box.replaceChildren();
    this.#clearsNext = false;
  }

  /** Shows one output: printed text goes on in its block, a value or a finished log has its tables as tables. */
  show({ kind, text, url, title, wait, figure: data }) {
    if (kind === "cleared" && wait) this.#clearsNext = true;
    else if (kind === "cleared" || this.#clearsNext) this.clear();
    if (data) this.#box.append(interactiveFigure(data, url ? figure(url) : this.#still(text)));
    else if (url) this.#box.append(figure(url));
    else if (text && (kind === "result" || kind === "logs")) this.#parts(kind, text);
    else if (text) this.#text(kind, text, title);
  }

  /** Adds an element of its own, such as a list of files. */
  add(element) {
    this.#box.append(element);
  }

  #still(text) {
    const block = this.#block("result");
    block.lastChild.data = text || "a figure";
    return block;
  }

  #parts(kind, text) {
    for (const part of partsOf(text)) {
      if (typeof part === "string") this.#text(kind, part.replace(/^\n+|\s+$/g, ""));
      else this.#box.append(Object.assign(sortable(tableOf(part)), { ariaLabel: "Table", role: "group" }));
    }
  }

  #text(kind, text, title) {
    const last = this.#box.lastElementChild;
    const goesOn = kind.startsWith("std") && last?.dataset.kind === kind;
    const block = goesOn ? last : this.#block(kind, title);
    const lines = this.#line + text;
    const end = lines.lastIndexOf("\n") + 1;
    this.#line = folded(lines.slice(end));
    block.lastChild.before(folded(lines.slice(0, end)));
    block.lastChild.data = this.#line;
  }

  #block(kind, title) {
    const block = of("pre", { tabIndex: 0 }, document.createTextNode("")); // it may scroll, so the keyboard reaches it
    block.dataset.kind = kind;
    block.dataset.label = title ?? LABELS[kind] ?? kind;
    this.#line = "";
    this.#box.append(block);
    return block;
  }
}
