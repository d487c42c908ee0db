// What a model says, as it is meant to be read: paragraphs, headings, lists, code, tables, bold and italic.
//
// This is the part of Markdown that carries no address: elements are made one by one, and their texts are text nodes. A
// link stays the text that it is, but for one to a file of the sandbox, which becomes a button that asks for that file.

import { button, copier, of } from "../elements.js";
import { highlighted } from "./highlight.js";
import { pipesOf, tableOf } from "./table.js";

export const MAX_PROSE = 200_000; // characters; more is shown as it was written
const SPANS = ["`([^`\\n]{1,2000})`", "\\*\\*([^*\\n]{1,2000})\\*\\*", "\\*([^*\\s][^*\\n]{0,2000})\\*"];
const FILE = "\\[([^[\\]\\n]{1,200})\\]\\(sandbox:([^()\\s]{1,500})\\)"; // as models name what their code wrote
const MARKS = new RegExp([...SPANS, FILE].join("|"), "g");
const FENCE = /^ {0,3}```([\w+-]{0,20})/;
const HEADING = /^(#{1,6}) (.*)$/;
const ITEM = /^ {0,8}(?:([-*+])|\d{1,4}[.)]) (.*)$/;

/** Returns a text as nodes. `open(path)` is called for a file that is clicked. */
export function prose(text, open = () => {}) {
  const made = document.createDocumentFragment();
  if (text.length > MAX_PROSE) {
    made.append(of("p", {}, text));
    return made;
  }
  const lines = text.split("\n");
  for (let index = 0; index < lines.length; ) index = block(lines, index, made, open);
  return made;
}

/** Adds the block that begins at a line; returns the line after it. */
function block(lines, start, made, open) {
  const line = lines[start];
  if (!line.trim()) return start + 1;
  if (FENCE.test(line)) return fenced(lines, start, made);
  const heading = HEADING.exec(line);
  if (heading) {
    made.append(of(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2], open)));
    return start + 1;
  }
  const end = endOf(lines, start);
  const table = line.includes("|") ? pipesOf(lines.slice(start, end)) : null;
  if (table) made.append(tableOf(table));
  else if (ITEM.test(line)) made.append(list(lines.slice(start, end), open));
  else made.append(of("p", {}, inline(lines.slice(start, end).join("\n"), open)));
  return end;
}

/** The end of a run of lines of one kind. */
function endOf(lines, start) {
  const isList = ITEM.test(lines[start]);
  let end = start + 1;
  while (end < lines.length && lines[end].trim() && !FENCE.test(lines[end]) && !HEADING.test(lines[end])) {
    if (!isList && ITEM.test(lines[end])) break;
    end++;
  }
  return end;
}

function fenced(lines, start, made) {
  const language = FENCE.exec(lines[start])[1].toLowerCase();
  let end = start + 1;
  while (end < lines.length && !/^ {0,3}```\s*$/.test(lines[end])) end++;
  made.append(codeBlock(lines.slice(start + 1, end).join("\n"), language));
  return end + 1;
}

/** Code in a box with a button to copy it. */
export function codeBlock(code, language) {
  const shown = of("pre", { tabIndex: 0 }, of("code", {}, highlighted(code, language)));
  return of("div.code", {}, shown, copier(() => code));
}

function list(lines, open) {
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found) items.push(found[2]);
    else items[items.length - 1] += `\n${line.trim()}`;
  }
  const tag = ITEM.exec(lines[0])[1] ? "ul" : "ol";
  return of(tag, {}, ...items.map((item) => of("li", {}, inline(item, open))));
}

function inline(text, open) {
  const made = document.createDocumentFragment();
  let last = 0;
  for (const found of text.matchAll(MARKS)) {
    const [whole, code, bold, italic, label, path] = found;
    made.append(text.slice(last, found.index));
    if (code) made.append(of("code", {}, code));
    else if (bold) made.append(of("strong", {}, bold));
    else if (italic) made.append(of("em", {}, italic));
    else made.append(button(".link", label, () => open(path), { title: `Download ${path}` }));
    last = found.index + whole.length;
  }
  made.append(text.slice(last));
  return made;
}
