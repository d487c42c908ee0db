// What code yields, as it comes. All it says is set as text, and pictures are data URLs that the gateway has checked.

const LABELS = { stdout: "", result: "value", files: "files written" };

/** What a terminal would show: a carriage return starts its line again. */
const folded = (text) => text.replace(/\r+\n/g, "\n").replace(/[^\n\r]*\r+(?=[^\n\r])/g, "");

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

  show({ kind, text, url, title, wait }) {
    if (kind === "cleared" && wait) this.#clearsNext = true;
    else if (kind === "cleared" || this.#clearsNext) this.clear();
    if (url) this.#picture(url);
    else if (text) this.#text(kind, text, title);
  }

  #picture(url) {
    const picture = document.createElement("img");
    picture.src = url;
    picture.alt = "a figure that the code drew";
    this.#box.append(picture);
  }

  #text(kind, text, title) {
    const last = this.#box.lastElementChild;
    const goesOn = kind.startsWith("std") && last?.dataset.kind === kind;
    const block = goesOn ? last : this.#block(kind, title);
    const lines = this.#line + text;
    const end = lines.lastIndexOf("\n") + 1;
    this.#line = lines.slice(end);
    block.lastChild.before(folded(lines.slice(0, end)));
    block.lastChild.data = folded(this.#line);
  }

  #block(kind, title) {
    const block = document.createElement("pre");
    block.dataset.kind = kind;
    block.dataset.label = title ?? LABELS[kind] ?? kind;
    block.append(document.createTextNode(""));
    this.#line = "";
    this.#box.append(block);
    return block;
  }
}
