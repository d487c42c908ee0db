// The answer of a model as its author meant it: paragraphs, headings, lists, quotes, tables, code, formulas and emphasis.
//
// Markdown is read in two steps: lines into blocks, then the text of a block into spans. Blocks in lists and quotes are read
// by the same code, to a depth of MAX_DEPTH. Elements are made one by one, and their texts are text nodes. No address is
// ever followed: a link is its label with its address beside it, a link to a file of the sandbox a button that asks for
// that file. No pattern looks at a character more than a fixed number of times.

import { button, copier, of } from "../elements.js";
import { highlighted } from "./highlight.js";
import { formula } from "./math.js";
import { isRule, pipesOf, tableOf } from "./table.js";

export const MAX_PROSE = 200_000; // characters; more is shown as it was written
const MAX_DEPTH = 6; // of lists and quotes in each other, and of emphasis in emphasis
const MAX_LINES = 60; // of a formula between `$$` or `\[`

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`\n]{0,40})/;
const HEADING = /^ {0,3}(#{1,6}) +([^\n]*)$/;
const ITEM = /^( {0,40})(?:([-*+])|(\d{1,9})[.)])(?: +|$)(\[[ xX]\] )?/;
const LINE = /^ {0,3}(?:-[ -]*-[ -]*-|\*[ *]*\*[ *]*\*|_[ _]*_[ _]*_)[ ]*$/;
const QUOTE = /^ {0,3}> ?/;
const FORMULA = /^\s{0,12}(?:\$\$|\\\[|\\begin\{)/;

/** Returns a text as nodes. `open(path)` is called for a file that is clicked. */
export function prose(text, open = () => {}) {
  if (text.length <= MAX_PROSE) return blocks(text.replaceAll("\t", "    ").split("\n"), open, 0);
  const made = document.createDocumentFragment();
  made.append(of("p", {}, text));
  return made;
}

function blocks(lines, open, depth) {
  const made = document.createDocumentFragment();
  for (let at = 0; at < lines.length; ) at = block(lines, at, made, open, depth);
  return made;
}

/** Adds the block that begins at a line; returns the line after it. */
function block(lines, start, made, open, depth) {
  const line = lines[start];
  if (!line.trim()) return start + 1;
  if (FENCE.test(line)) return fenced(lines, start, made);
  if (LINE.test(line)) return made.append(of("hr")) ?? start + 1;
  const heading = HEADING.exec(line);
  if (heading) {
    made.append(of(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2].replace(/ #+ *$/, ""), open)));
    return start + 1;
  }
  const shown = FORMULA.test(line) && formulaAt(lines, start);
  if (shown) return made.append(shown.element) ?? shown.end;
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, start, made, open, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, start, made, open, depth);
  return paragraph(lines, start, made, open);
}

function paragraph(lines, start, made, open) {
  const isTable = (at) => lines[at].includes("|") && at + 1 < lines.length && isRule(lines[at + 1]);
  const isFirst = isTable(start);
  let end = start + 1;
  while (end < lines.length && !interrupts(lines[end]) && (isFirst || !isTable(end))) end++;
  const table = isFirst ? pipesOf(lines.slice(start, end)) : null;
  if (table) made.append(tableOf(table, (text) => inline(text, open)));
  else made.append(of("p", {}, inline(lines.slice(start, end).join("\n"), open)));
  return end;
}

/** Returns true for a line that ends the paragraph above it. */
const interrupts = (line) =>
  !line.trim() || [FENCE, HEADING, QUOTE, ITEM, LINE, FORMULA].some((pattern) => pattern.test(line));

function fenced(lines, start, made) {
  const [, marks, about] = FENCE.exec(lines[start]);
  const indent = / */.exec(lines[start])[0].length;
  const isEnd = (line) => line.trim().length >= marks.length && line.trim().replaceAll(marks[0], "") === "";
  let end = start + 1;
  while (end < lines.length && !isEnd(lines[end])) end++;
  const code = lines.slice(start + 1, end).map((line) => dedented(line, indent)).join("\n");
  const language = /^[\w+-]*/.exec(about.trim())[0].toLowerCase();
  made.append((language === "math" && formula(code, true)) || codeBlock(code, language));
  return end + 1;
}

/** Code in a box with a button to copy it. */
export function codeBlock(code, language) {
  const shown = of("pre", { tabIndex: 0 }, of("code", {}, highlighted(code, language)));
  return of("div.code", {}, shown, copier(() => code));
}

/** Reads a formula on lines of its own; null if it has no end, or cannot be read. */
function formulaAt(lines, start) {
  const opening = lines[start].trim();
  const name = /^\\begin\{([a-z]+\*?)\}/.exec(opening)?.[1];
  if (!name && opening.startsWith("\\begin")) return null;
  const [open, close] = name ? ["", `\\end{${name}}`] : opening.startsWith("$$") ? ["$$", "$$"] : ["\\[", "\\]"];
  let text = "";
  for (let at = start; at < lines.length && at < start + MAX_LINES; at++) {
    const before = text.length;
    text += `${at === start ? opening.slice(open.length) : lines[at]}\n`;
    const end = text.indexOf(close, before);
    if (end < 0) continue;
    if (!/^[.,;:]?\s*$/.test(text.slice(end + close.length))) return null; // a sentence goes on: it is read as a span
    const element = formula(text.slice(0, name ? end + close.length : end).trim(), true);
    return element && { element: of("div.formula", {}, element), end: at + 1 };
  }
  return null;
}

function quote(lines, start, made, open, depth) {
  const inner = [];
  let end = start;
  for (; end < lines.length; end++) {
    const isQuoted = QUOTE.test(lines[end]);
    if (!isQuoted && (interrupts(lines[end]) || !inner.at(-1)?.trim())) break; // else the paragraph goes on
    inner.push(lines[end].replace(QUOTE, ""));
  }
  made.append(of("blockquote", {}, blocks(inner, open, depth + 1)));
  return end;
}

/** Adds a list: its items, each with all lines below it that are indented deeper. */
function list(lines, start, made, open, depth) {
  const [, indent, bullet, number] = ITEM.exec(lines[start]);
  const items = [];
  let at = start;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || LINE.test(lines[at]) || Boolean(item[2]) !== Boolean(bullet) || item[1].length > indent.length + 1) break;
    const end = endOfItem(lines, at, item[1].length);
    const width = item[0].length - (item[4]?.length ?? 0);
    const inner = [lines[at].slice(item[0].length), ...lines.slice(at + 1, end).map((line) => dedented(line, width))];
    items.push(listItem(inner, item[4], open, depth));
    at = end;
    while (at < lines.length && !lines[at].trim()) at++;
  }
  const box = of(bullet ? "ul" : "ol", {}, ...items);
  if (number && Number(number) !== 1) box.start = Number(number);
  made.append(box);
  return at;
}

/** The line after an item whose mark has an indentation: deeper lines belong to it, and so does a paragraph that goes on. */
function endOfItem(lines, start, indent) {
  let end = start + 1;
  for (let wasBlank = false; end < lines.length; end++) {
    const line = lines[end];
    const isDeeper = line.search(/\S/) > indent + 1;
    if (line.trim() && !isDeeper && (wasBlank || interrupts(line))) break;
    wasBlank = !line.trim();
  }
  while (end > start + 1 && !lines[end - 1].trim()) end--;
  return end;
}

function listItem(lines, box, open, depth) {
  const content = blocks(lines, open, depth + 1);
  const first = content.firstChild;
  if (first?.nodeName === "P") first.replaceWith(...first.childNodes); // beside its mark
  const isDone = box && box[1] !== " ";
  return of("li", {}, box ? of("span.box", { ariaLabel: isDone ? "done" : "open", role: "img" }, isDone ? "☑ " : "☐ ") : null, content);
}

const dedented = (line, width) => line.slice(Math.min(width, Math.max(0, line.search(/\S|$/))));

// -- spans --------------------------------------------------------------------------------------------------------------

const ADDRESS = String.raw`https?:\/\/[^\s<>()]{1,1000}(?:\([^\s<>()]{0,200}\)[^\s<>()]{0,1000})?`;
const SPANS = {
  code: String.raw`(?<ticks>\x60{1,3})(?!\x60)(?<code>(?:[^\x60\n]|(?!\k<ticks>)\x60){1,2000})\k<ticks>(?!\x60)`,
  display: String.raw`\$\$(?<display>[^$]{1,2000})\$\$|\\\[(?<bracketed>(?:[^\\]|\\(?![[\]])){1,2000})\\\]`,
  round: String.raw`\\\((?<round>(?:[^\\]|\\(?![()])){1,2000})\\\)`,
  dollar: String.raw`(?<![\w$\\])\$(?<dollar>(?![\s$])[^$\n]{0,500}[^\s$\\]|[^\s$])\$(?![\d$])`,
  escaped: String.raw`\\(?<escaped>[\\\x60*_{}[\]()#+\-.!~|>$<])`,
  both: String.raw`\*{3}(?=[^\s*])(?<both>[^*\n]{1,2000})\*{3}`,
  strong: String.raw`\*\*(?=[^\s*])(?<strong>(?:[^*]|\*(?!\*)){1,2000})\*\*`,
  em: String.raw`\*(?=[^\s*])(?<em>[^*\n]{1,2000})(?<![\s])\*|(?<![\p{L}\p{N}_])_(?=[^\s_])(?<em2>[^_\n]{1,2000})_(?![\p{L}\p{N}_])`,
  strike: String.raw`~~(?=\S)(?<strike>[^~\n]{1,2000})~~`,
  file: String.raw`!?\[(?<label>[^[\]\n]{1,200})\]\(<?sandbox:(?<path>(?:[^()<>\n]|\([^()<>\n]{0,200}\)){1,500})>?\)`,
  link: String.raw`!?\[(?<name>[^[\]\n]{0,400})\]\(<?(?<address>${ADDRESS}|mailto:[^\s()]{1,300})>?(?: "[^"\n]{0,200}")?\)`,
  bare: String.raw`<(?<bare>${ADDRESS})>`,
  line: String.raw`<br ?\/?>`,
};
const MARKS = new RegExp(Object.values(SPANS).join("|"), "gu");

/** Returns the text of a block as nodes. */
function inline(text, open, depth = 0) {
  const made = document.createDocumentFragment();
  if (depth > MAX_DEPTH) return made.append(text) ?? made;
  let last = 0;
  for (const found of text.matchAll(MARKS)) {
    made.append(text.slice(last, found.index), span(found, open, depth));
    last = found.index + found[0].length;
  }
  made.append(text.slice(last));
  return made;
}

function span({ 0: whole, groups: is }, open, depth) {
  const inner = (text) => inline(text, open, depth + 1);
  if (is.code) return of("code", {}, is.code.replace(/^ (.*\S.*) $/, "$1"));
  if (is.escaped) return is.escaped;
  if (is.both) return of("strong", {}, of("em", {}, inner(is.both)));
  if (is.strong) return of("strong", {}, inner(is.strong));
  if (is.em ?? is.em2) return of("em", {}, inner(is.em ?? is.em2));
  if (is.strike) return of("s", {}, inner(is.strike));
  if (is.path) return button(".link", is.label, () => open(is.path), { title: `Download ${is.path}` });
  if (is.address ?? is.bare) return address(is.name, is.address ?? is.bare, inner);
  if (whole.startsWith("<")) return "\n";
  const shown = is.display ?? is.bracketed;
  return formula((shown ?? is.round ?? is.dollar).trim(), Boolean(shown)) ?? whole;
}

/** A link as its label with its address beside it: the page follows none, and a person sees where one would lead. */
function address(name, url, inner) {
  const label = name?.trim() ?? "";
  if (!label || label === url) return of("span.address", {}, url);
  return of("span", {}, inner(label), " ", of("span.address", {}, url));
}
