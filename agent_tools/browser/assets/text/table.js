// Tables in text: a data frame as pandas prints it, and the pipes of Markdown, read into cells.
//
// pandas pads every line of a frame to one length, with at least two blanks between columns; but one is enough after the
// index, where the first column has a long name. So a frame is a header that begins with blanks, and lines of its length
// below it; its columns lie between the places where all are blank.
// Anything that is not quite so (wide characters, wrapped frames) stays the text that it is.

import { of } from "../elements.js";

export const MAX_ROWS = 500;
const MAX_COLUMNS = 60;
const NUMERIC = /^(?:[-+]?[\d,_]*\.?\d+(?:e[-+]?\d+)? ?%?|nan|NaN|None|<NA>|inf|-inf|\.{2,3}|)$/i;

/** Returns text as parts, in order: strings, and tables as `{ columns, rows }` of strings. */
export function partsOf(text) {
  const lines = text.split("\n");
  const parts = [];
  let plain = [];
  for (let index = 0; index < lines.length; ) {
    const end = /^ {2,}\S/.test(lines[index]) ? endOfBlock(lines, index) : index + 1;
    const block = lines.slice(index, end);
    const table = block.length > 1 ? (frameOf(block, 2) ?? frameOf(block, 1)) : null;
    if (table) {
      if (plain.length) parts.push(plain.join("\n"));
      parts.push(table);
      plain = [];
    } else plain.push(...lines.slice(index, end));
    index = end;
  }
  if (plain.join("").trim()) parts.push(plain.join("\n"));
  return parts;
}

/** The lines below a header that are as long as it; that with the index's name may end earlier. */
function endOfBlock(lines, start) {
  let end = start + 1;
  while (end < lines.length && lines[end].trim() && lines[end].length === lines[start].length) end++;
  return end;
}

/** Returns the table that lines make, with so many blanks after the index; null if they make none. */
function frameOf(lines, afterIndex) {
  if (lines.length > MAX_ROWS + 1 || lines[1].startsWith(" ") || lines.some((line) => line.endsWith("\\"))) return null;
  const cuts = gutters(lines, afterIndex);
  if (cuts.length < 1 || cuts.length > MAX_COLUMNS) return null;
  const [columns, ...rows] = lines.map((line) => cellsOf(line, cuts));
  if (columns[0] || !columns.slice(1).every(Boolean)) return null;
  if (!rows[0].slice(1).some(Boolean)) columns[0] = rows.shift()[0]; // a line for the index's name
  return rows.length ? { columns, rows } : null;
}

/** The places before which a column ends: runs of two or more that are blank in all lines; the first may be shorter. */
function gutters(lines, first) {
  const cuts = [];
  let run = 0;
  for (let place = 0; place < lines[0].length; place++) {
    if (lines.every((line) => line[place] === " ")) run++;
    else {
      if (run >= (cuts.length ? 2 : first) && place > run) cuts.push(place);
      run = 0;
    }
  }
  return cuts;
}

const cellsOf = (line, cuts) => [0, ...cuts].map((start, index) => line.slice(start, cuts[index]).trim());

/** Returns the table that Markdown lines make, `| a | b |` and `|---|---|` first; null if not all of them fit one. */
export function pipesOf(lines) {
  if (lines.length < 2 || lines.length > MAX_ROWS + 2) return null;
  if (!pipedCells(lines[1]).every((cell) => /^:?-+:?$/.test(cell))) return null;
  const [columns, rule, ...rows] = lines.map(pipedCells);
  if (columns.length > MAX_COLUMNS || rows.some((row) => row.length > columns.length)) return null;
  return { columns, sides: rule.map(sideOf), rows: rows.map((row) => columns.map((_, n) => row[n] ?? "")) };
}

/** The class for a column whose side the author marked, `:--`, `:-:` or `--:`; undefined for no mark. */
const sideOf = (mark) => [undefined, ".left", ".right", ".middle"][mark.startsWith(":") + 2 * mark.endsWith(":")];

const PIPED = /`[^`]*`|\\[^]|[^|`\\]+|[`\\]/y; // a pipe in code, or after a backslash, belongs to its cell

/** The cells of a line of a Markdown table. */
function pipedCells(line) {
  const text = line.trim().replace(/^\|/, "");
  const cells = [""];
  for (let at = 0; at < text.length; ) {
    PIPED.lastIndex = at;
    const piece = PIPED.exec(text)?.[0];
    if (piece) cells[cells.length - 1] += piece === "\\|" ? "|" : piece;
    else if (at < text.length - 1) cells.push("");
    at += piece?.length ?? 1;
  }
  return cells.map((cell) => cell.trim());
}

/** Returns true for the line below a Markdown table's header, `|---|:-:|`. */
export const isRule = (line) => line.includes("-") && line.includes("|") && /^[|\s:-]+$/.test(line);

const isNumeric = (cell) => cell.length < 40 && NUMERIC.test(cell);

const number = (cell) => {
  const value = parseFloat(cell.replace(/[,_]/g, ""));
  return Number.isNaN(value) ? -Infinity : value;
};

/** Has a click on a column's name sort a table of `tableOf` by it, and another one the other way round. */
export function sortable(table) {
  const names = [...table.querySelectorAll("th")];
  for (const [at, name] of names.entries()) {
    const sort = of("button.sort", { type: "button", title: "Sort by this column" }, ...name.childNodes);
    sort.addEventListener("click", () => {
      const order = name.ariaSort === "ascending" ? "descending" : "ascending";
      for (const each of names) each.ariaSort = each === name ? order : null;
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[at].textContent;
      const isNumber = name.classList.contains("number");
      const compare = (a, b) => (isNumber ? number(a) - number(b) || 0 : a.localeCompare(b, undefined, { numeric: true }));
      const body = table.querySelector("tbody");
      body.append(...[...body.rows].sort((a, b) => sign * compare(key(a), key(b))));
    });
    name.replaceChildren(sort);
  }
  return table;
}

/**
 * A table as elements; a column of numbers stands to the right, unless its author marked another side. `shown(text)`
 * makes the content of a cell.
 */
export function tableOf({ columns, rows, sides = [] }, shown = (text) => text) {
  const kinds = columns.map((_, n) => sides[n] ?? (rows.every((row) => isNumeric(row[n])) ? ".number" : ""));
  const head = of("tr", {}, ...columns.map((name, n) => of(`th${kinds[n]}`, { scope: "col" }, shown(name))));
  const body = rows.map((row) => of("tr", {}, ...row.map((cell, n) => of(`td${kinds[n]}`, {}, shown(cell)))));
  return of("div.table", { tabIndex: 0 }, of("table", {}, of("thead", {}, head), of("tbody", {}, ...body)));
}
