// Code in colours. A tokenizer reads once from left to right, and each token becomes a span with its text in it.
//
// Each language is a list of kinds with a sticky pattern; the first that fits at a place has it, and a character that
// none has is plain. No pattern looks at a character more than a fixed number of times, and text that is longer than
// MAX_CODE stays plain, so what a model or a file says costs no more than its length.

export const MAX_CODE = 60_000; // characters

const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /(?:0[xXoObB][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[jn]?/y;
const QUOTED = /"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?/y;
const HASH = ["comment", /#[^\n]*/y];
const WORDS = {
  python:
    "and as assert async await break case class continue def del elif else except finally for from global if import " +
    "in is lambda match nonlocal not or pass raise return try while with yield True False None",
  javascript:
    "async await break case catch class const continue default delete else export extends finally for from function " +
    "if import in instanceof let new of return static super switch this throw try typeof var while yield true false " +
    "null",
  sh: "if then else elif fi for in do done while case esac function export",
  toml: "true false",
  json: "true false null",
};
const LANGUAGES = {
  python: [
    HASH,
    ["string", /[rRbBfFuU]{0,2}(?:"""(?:[^\\]|\\[^])*?(?:"""|$)|'''(?:[^\\]|\\[^])*?(?:'''|$))/y],
    ["string", /[rRbBfFuU]{0,2}(?:"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?)/y],
    ["meta", /@[\w.]+|[%!][a-z]\w*/y],
    ["number", NUMBER],
    ["word", WORD],
  ],
  javascript: [
    ["comment", /\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/y],
    ["string", QUOTED],
    ["string", /`(?:[^`\\]|\\[^])*`?/y],
    ["number", NUMBER],
    ["word", WORD],
  ],
  sh: [HASH, ["string", QUOTED], ["meta", /\$\w+|(?<=\s)--?[a-z][\w-]*/y], ["word", WORD]],
  toml: [HASH, ["meta", /\[[^\]\n]*\]/y], ["string", QUOTED], ["number", NUMBER], ["word", WORD]],
  json: [["string", QUOTED], ["number", NUMBER], ["word", WORD]],
};
const OTHER_NAMES = {
  ...{ py: "python", python3: "python", ipython: "python", js: "javascript", mjs: "javascript", ts: "javascript" },
  ...{ typescript: "javascript", bash: "sh", shell: "sh", console: "sh" },
};
const KEYWORDS = Object.fromEntries(Object.entries(WORDS).map(([name, words]) => [name, new Set(words.split(" "))]));

/** Yields kind and text of each token; joined, the texts are the code. */
export function* tokens(code, language) {
  const name = Object.hasOwn(OTHER_NAMES, language) ? OTHER_NAMES[language] : language;
  const rules = Object.hasOwn(LANGUAGES, name) && code.length <= MAX_CODE ? LANGUAGES[name] : [];
  let plain = 0; // where the text begins that belongs to no token yet
  for (let place = 0; place < code.length && rules.length; ) {
    const [kind, text] = tokenAt(code, place, rules);
    const shown = kind === "word" ? kindOfWord(code, text, place + text.length, name) : kind;
    if (shown) {
      if (plain < place) yield ["", code.slice(plain, place)];
      yield [shown, text];
      plain = place + text.length;
    }
    place += text.length;
  }
  if (plain < code.length) yield ["", code.slice(plain)];
}

function tokenAt(code, place, rules) {
  for (const [kind, pattern] of rules) {
    pattern.lastIndex = place;
    const found = pattern.exec(code);
    if (found?.[0]) return [kind, found[0]];
  }
  return ["", code[place]];
}

function kindOfWord(code, word, end, name) {
  if (KEYWORDS[name].has(word)) return "keyword";
  return code[end] === "(" ? "call" : "";
}

/** Returns code as nodes. */
export function highlighted(code, language) {
  const made = document.createDocumentFragment();
  for (const [kind, text] of tokens(code, language)) {
    if (!kind) made.append(text);
    else {
      const span = document.createElement("span");
      span.className = `token-${kind}`;
      span.textContent = text;
      made.append(span);
    }
  }
  return made;
}
