// LaTeX formulas as MathML, which browsers draw themselves: the part of LaTeX that models write.
//
// A formula is read once from left to right into elements of fixed names, and all its text becomes text nodes. A command
// that is not in the tables is shown as its name. Nesting and the number of elements have limits; a formula beyond them,
// or one whose braces do not match, is not converted, and the caller shows its source.

export const MAX_FORMULA = 4_000; // characters
const MAX_DEPTH = 24;
const MAX_ELEMENTS = 3_000;
const CLOSING = new Set(["}", "&", "\\\\", "\\cr", "\\right", "\\middle", "\\end"]);
const TOKEN = /\\[A-Za-z]+\*?|\\[^]|\d+(?:[.,]\d+)*|[^]/uy;

const table = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split("=")));

const LETTERS = table(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ
  lambda=λ mu=μ nu=ν xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ
  psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂
  nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ wp=℘ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ degree=° angle=∠ top=⊤ bot=⊥
  dots=… ldots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ prime=′ triangle=△ square=□ checkmark=✓ pounds=£ S=§`);
const OPERATORS = table(`times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙
  le=≤ leq=≤ leqslant=⩽ ge=≥ geq=≥ geqslant=⩾ ne=≠ neq=≠ ll=≪ gg=≫ approx=≈ equiv=≡ sim=∼ simeq=≃ cong=≅ propto=∝
  doteq=≐ triangleq=≜ coloneqq=≔ prec=≺ succ=≻ in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆ subsetneq=⊊ supset=⊃ supseteq=⊇
  cup=∪ cap=∩ setminus=∖ sqcup=⊔ sqcap=⊓ forall=∀ exists=∃ nexists=∄ neg=¬ lnot=¬ land=∧ wedge=∧ lor=∨ vee=∨
  to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ impliedby=⟸
  iff=⟺ mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ hookrightarrow=↪ uparrow=↑ downarrow=↓ nearrow=↗
  searrow=↘ rightharpoonup=⇀ rightleftharpoons=⇌ leadsto=⇝ perp=⊥ parallel=∥ mid=∣ nmid=∤ vdash=⊢ models=⊨ therefore=∴
  because=∵ colon=: lbrace={ rbrace=} lbrack=[ rbrack=] langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ vert=| Vert=‖
  lvert=| rvert=| lVert=‖ rVert=‖ backslash=\\ amalg=⨿ dagger=† ddagger=‡ ltimes=⋉ rtimes=⋊ And=&`);
const LARGE = table(`sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀`);
const INTEGRALS = table(`int=∫ iint=∬ iiint=∭ oint=∮ oiint=∯`);
const FUNCTIONS = new Set(
  ("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp deg dim ker hom arg det gcd lcm Pr " +
    "sgn rank tr").split(" "),
);
const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin".split(" "));
const ACCENTS = table(`hat=^ widehat=^ bar=¯ overline=¯ vec=→ overrightarrow=→ tilde=~ widetilde=~ dot=˙ ddot=¨ check=ˇ
  breve=˘ acute=´ grave=\` mathring=˚ overbrace=⏞`);
const BELOW = table(`underline=_ underbrace=⏟`);
const SPACES = { ",": "0.167em", ":": "0.222em", ">": "0.222em", ";": "0.278em", " ": "0.25em", "!": "-0.167em",
  quad: "1em", qquad: "2em", enspace: "0.5em", thinspace: "0.167em" };
const FENCES = { matrix: ["", ""], smallmatrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"],
  vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], cases: ["{", ""], rcases: ["", "}"], dcases: ["{", ""] };
const ALIGNED = new Set("align aligned alignat alignedat split eqnarray flalign".split(" "));
const IGNORED = new Set(
  ("displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits nonumber notag allowbreak hline hfill " +
    "centering normalsize small large").split(" "),
);
const DROPPED = new Set("label hspace vspace tag color phantom hphantom vphantom".split(" ")); // with their argument
const TEXTS = new Set("text textrm textbf textit textsf texttt textnormal mbox hbox operatorname mathrm mathop".split(" "));
const BIG = /^[bB]igg?[lrm]?$/;

/** By font: the code points of A, a and 0, and letters that Unicode has elsewhere. */
const FONTS = {
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, {}],
  mathcal: [0x1d49c, 0x1d4b6, 0, { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }],
  mathfrak: [0x1d504, 0x1d51e, 0, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2, {}],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6, {}],
};
const OTHER_FONTS = { bm: "mathbf", boldsymbol: "mathbf", bold: "mathbf", mathscr: "mathcal", mathit: "", mathnormal: "" };

class Unreadable extends Error {}

/** Returns a formula as a `math` element; null if it cannot be read, or is too large. */
export function formula(source, isBlock = false) {
  if (source.length > MAX_FORMULA) return null;
  try {
    const content = new Reader(source).all();
    const made = element("math", content);
    if (isBlock) made.setAttribute("display", "block");
    return made;
  } catch (error) {
    if (error instanceof Unreadable) return null;
    throw error;
  }
}

function element(name, children, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/1998/Math/MathML", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

class Reader {
  #tokens = [];
  #at = 0;
  #depth = 0;
  #count = 0;
  #font = "";

  constructor(source) {
    TOKEN.lastIndex = 0;
    for (let found; (found = TOKEN.exec(source)); ) this.#tokens.push(found[0]);
  }

  all() {
    const rows = this.#rows();
    if (this.#at < this.#tokens.length) throw new Unreadable("a closing token that nothing opened");
    if (!rows.length) return [];
    if (rows.length === 1 && rows[0].childNodes.length === 1) return [...rows[0].firstChild.childNodes];
    return [this.#make("mtable", rows, { class: "aligned", displaystyle: "true" })];
  }

  get #next() {
    return this.#tokens[this.#at];
  }

  #make(name, children, attributes) {
    if (++this.#count > MAX_ELEMENTS) throw new Unreadable("too many elements");
    return element(name, children, attributes);
  }

  #group = (children) => (children.length === 1 ? children[0] : this.#make("mrow", children));

  /** Reads elements until a closing token, or the end. */
  #row() {
    if (++this.#depth > MAX_DEPTH) throw new Unreadable("nested too deeply");
    const children = [];
    while (this.#at < this.#tokens.length && !CLOSING.has(this.#next)) {
      const isName = FUNCTIONS.has(this.#next.slice(1));
      const whole = this.#scripts(this.#one());
      if (whole) children.push(whole);
      const goesOn = this.#next !== undefined && !CLOSING.has(this.#next) && !["(", "\\left"].includes(this.#next);
      if (isName && goesOn) children.push(this.#space("0.167em"));
    }
    this.#depth -= 1;
    return children;
  }

  /** Adds the subscript and superscript that follow an element; null for nothing at all. */
  #scripts(base) {
    let [below, above, primes] = [null, null, ""];
    for (;;) {
      this.#blanks();
      if (this.#next === "'") {
        primes += "′";
        this.#at += 1;
      } else if (this.#next === "_" || this.#next === "^") {
        const isBelow = this.#next === "_";
        this.#at += 1;
        const script = this.#argument();
        if (isBelow) below = script;
        else above = script;
      } else if (this.#next === "\\limits" || this.#next === "\\nolimits") this.#at += 1;
      else break;
    }
    if (primes) {
      const sign = this.#make("mo", [primes]);
      above = above ? this.#make("mrow", [sign, above]) : sign;
    }
    if (!below && !above) return base;
    const inner = base ?? this.#make("mrow", []);
    const [both, under, over] = takesLimits(inner) ? ["munderover", "munder", "mover"] : ["msubsup", "msub", "msup"];
    if (below && above) return this.#make(both, [inner, below, above]);
    return below ? this.#make(under, [inner, below]) : this.#make(over, [inner, above]);
  }

  #blanks() {
    while (this.#next !== undefined && /^\s$/.test(this.#next)) this.#at += 1;
  }

  /** Reads the argument of a command: a group in braces, or one element. */
  #argument() {
    this.#blanks();
    if (this.#next === undefined || CLOSING.has(this.#next)) throw new Unreadable("an argument is missing");
    if (this.#next === "{") return this.#braces();
    if (++this.#depth > MAX_DEPTH) throw new Unreadable("nested too deeply");
    const digits = this.#next; // of `\frac12`, each digit is an argument
    if (/^\d\d/.test(digits)) this.#tokens.splice(this.#at, 1, digits[0], digits.slice(1));
    const made = this.#one() ?? this.#make("mrow", []);
    this.#depth -= 1;
    return made;
  }

  #braces() {
    this.#at += 1;
    const children = this.#row();
    this.#expect("}");
    return this.#group(children);
  }

  #expect(token) {
    if (this.#next !== token) throw new Unreadable(`${token} is missing`);
    this.#at += 1;
  }

  /** Reads the text of an argument in braces, as it is written. */
  #text() {
    this.#blanks();
    if (this.#next !== "{") return this.#tokens[this.#at++] ?? "";
    let [text, open] = ["", 0];
    for (; this.#at < this.#tokens.length; ) {
      const token = this.#tokens[this.#at++];
      if (token === "{" && open++ === 0) continue;
      if (token === "}" && --open === 0) return text;
      text += /^\\[,:;! ]$/.test(token) ? " " : token.replace(/^\\(?=[^A-Za-z]$)/, "");
    }
    throw new Unreadable("} is missing");
  }

  /** Reads the text of an argument in brackets; "" if there is none. */
  #option() {
    if (this.#next !== "[") return "";
    let text = "";
    for (this.#at += 1; this.#at < this.#tokens.length && this.#next !== "]"; ) text += this.#tokens[this.#at++];
    this.#expect("]");
    return text;
  }

  /** Reads one element, without its scripts; null for a token that shows nothing. */
  #one() {
    const token = this.#next;
    if (token === "{") return this.#braces();
    if (token === "^" || token === "_") return null; // a script without a base
    this.#at += 1;
    if (token.startsWith("\\") && token.length > 1) return this.#command(token.slice(1));
    if (/^\s$/.test(token) || token === "$") return null;
    if (token === "~") return this.#space("0.25em");
    if (/^\d/.test(token)) return this.#make("mn", [inFont(token, this.#font)]);
    if (/^\p{L}$/u.test(token)) return this.#letter(token);
    return this.#make("mo", [token === "-" ? "−" : token === "*" ? "∗" : token], isFence(token) ? { stretchy: "false" } : {});
  }

  #letter(text) {
    const shown = inFont(text, this.#font);
    return this.#make("mi", [shown], this.#font === "upright" ? { mathvariant: "normal" } : {});
  }

  #space = (width) => this.#make("mspace", [], { width });

  #command(written) {
    const name = written.replace(/\*$/, "");
    const has = (names) => Object.hasOwn(names, name);
    if (has(LETTERS)) return this.#letter(LETTERS[name]);
    if (has(OPERATORS)) return this.#make("mo", [OPERATORS[name]], isFence(OPERATORS[name]) ? { stretchy: "false" } : {});
    if (has(LARGE)) return this.#make("mo", [LARGE[name]], { movablelimits: "true" });
    if (has(INTEGRALS)) return this.#make("mo", [INTEGRALS[name]]);
    if (FUNCTIONS.has(name)) return this.#name(name);
    if (LIMITS.has(name)) return this.#make("mo", [name.replace(/^(lim|arg)(?=.)/, "$1 ")], { movablelimits: "true" });
    if (has(SPACES)) return this.#space(SPACES[name]);
    if (has(ACCENTS)) return this.#accent("mover", ACCENTS[name], "accent");
    if (has(BELOW)) return this.#accent("munder", BELOW[name], "accentunder");
    if (has(FONTS)) return this.#inFont(name);
    if (has(OTHER_FONTS)) return this.#inFont(OTHER_FONTS[name]);
    if (TEXTS.has(name)) return this.#words(name, written.endsWith("*"));
    if (IGNORED.has(name)) return null;
    if (DROPPED.has(name)) {
      this.#text();
      return null;
    }
    if (BIG.test(name)) return this.#one();
    if (/^[^A-Za-z]/.test(name)) return this.#make("mo", [name === "|" ? "‖" : name], { stretchy: "false" });
    return this.#structure(name);
  }

  #structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return this.#make("mfrac", [this.#argument(), this.#argument()]);
      case "binom": case "dbinom": case "tbinom":
        return this.#fenced("(", [this.#make("mfrac", [this.#argument(), this.#argument()], { linethickness: "0" })], ")");
      case "sqrt": {
        const root = this.#option();
        const inner = this.#argument();
        return root ? this.#make("mroot", [inner, this.#make("mn", [root])]) : this.#make("msqrt", [inner]);
      }
      case "overset": case "stackrel": {
        const above = this.#argument();
        return this.#make("mover", [this.#argument(), above]);
      }
      case "underset": {
        const below = this.#argument();
        return this.#make("munder", [this.#argument(), below]);
      }
      case "xrightarrow": case "xleftarrow":
        return this.#make("mover", [this.#make("mo", [name === "xrightarrow" ? "→" : "←"]), this.#argument()]);
      case "not": {
        const negated = this.#argument();
        negated.append("\u0338");
        return negated;
      }
      case "bmod": return this.#make("mo", ["mod"], { lspace: "0.22em", rspace: "0.22em" });
      case "pmod": return this.#fenced("(", [this.#make("mi", ["mod"]), this.#space("0.3em"), this.#argument()], ")");
      case "boxed": case "fbox": return this.#make("mrow", [this.#argument()], { class: "boxed" });
      case "textcolor": case "colorbox": return this.#text() ? this.#argument() : null;
      case "left": return this.#between();
      case "begin": return this.#environment();
      default: return this.#make("mtext", [`\\${name}`]);
    }
  }

  #accent(kind, sign, attribute) {
    const base = this.#argument();
    return this.#make(kind, [base, this.#make("mo", [sign])], { [attribute]: "true" });
  }

  #inFont(font) {
    const before = this.#font;
    this.#font = font;
    const made = this.#argument();
    this.#font = before;
    return made;
  }

  #words(name, takesLimits) {
    const start = this.#at;
    const text = this.#text();
    if (name === "operatorname" || name === "mathop") {
      return takesLimits ? this.#make("mo", [text], { movablelimits: "true" }) : this.#name(text);
    }
    if (name === "mathrm") {
      if (/^[\p{L} ]*$/u.test(text)) return this.#name(text);
      this.#at = start;
      return this.#inFont("upright");
    }
    const shown = text.replaceAll("$", "").replace(/^ | $/g, "\u00a0");
    return this.#make("mtext", [shown], name === "textbf" ? { class: "strong" } : {});
  }

  #name = (text) => this.#make("mi", [text], { mathvariant: "normal" });

  #fenced(open, children, close) {
    const sign = (text, form) => (text ? [this.#make("mo", [text], { fence: "true", stretchy: "true", form })] : []);
    return this.#make("mrow", [...sign(open, "prefix"), ...children, ...sign(close, "postfix")]);
  }

  #delimiter() {
    this.#blanks();
    const token = this.#tokens[this.#at++] ?? ".";
    const name = token.slice(1);
    if (token === ".") return "";
    if (!token.startsWith("\\") || !name) return token;
    return Object.hasOwn(OPERATORS, name) ? OPERATORS[name] : name === "|" ? "‖" : name;
  }

  /** Reads what stands between `\left` and `\right`. */
  #between() {
    const open = this.#delimiter();
    const children = this.#row();
    while (this.#next === "\\middle") {
      this.#at += 1;
      children.push(this.#make("mo", [this.#delimiter()], { stretchy: "true" }), ...this.#row());
    }
    this.#expect("\\right");
    return this.#fenced(open, children, this.#delimiter());
  }

  #environment() {
    const name = this.#text().replace(/\*$/, "");
    if (name === "array" || name === "alignedat" || name === "alignat") this.#text(); // the columns
    const rows = this.#rows();
    this.#expect("\\end");
    this.#text();
    const isAligned = ALIGNED.has(name);
    const grid = this.#make("mtable", rows, isAligned ? { class: "aligned", displaystyle: "true" } : {});
    const [open, close] = Object.hasOwn(FENCES, name) ? FENCES[name] : ["", ""];
    if (name.endsWith("cases")) grid.setAttribute("class", "cases");
    return open || close ? this.#fenced(open, [grid], close) : grid;
  }

  #rows() {
    const rows = [];
    for (;;) {
      const cells = [this.#cell()];
      while (this.#next === "&") {
        this.#at += 1;
        cells.push(this.#cell());
      }
      if (cells.length > 1 || cells[0].childNodes.length) rows.push(this.#make("mtr", cells));
      if (this.#next !== "\\\\" && this.#next !== "\\cr") return rows;
      this.#at += 1;
      if (this.#next === "[") this.#option();
    }
  }

  #cell = () => this.#make("mtd", this.#row());
}

const isFence = (text) => "()[]{}|‖⟨⟩⌊⌋⌈⌉/".includes(text);
const takesLimits = (base) =>
  base.localName === "munder" || base.localName === "mover"
    ? /[⏞⏟]/.test(base.lastChild.textContent)
    : base.getAttribute("movablelimits") === "true";

/** A letter or number in one of Unicode's mathematical alphabets. */
function inFont(text, font) {
  if (!Object.hasOwn(FONTS, font)) return text;
  const [upper, lower, digit, others] = FONTS[font];
  return [...text].map((letter) => {
    if (Object.hasOwn(others, letter)) return others[letter];
    if (/[A-Z]/.test(letter)) return String.fromCodePoint(upper + letter.charCodeAt(0) - 65);
    if (/[a-z]/.test(letter)) return String.fromCodePoint(lower + letter.charCodeAt(0) - 97);
    return digit && /\d/.test(letter) ? String.fromCodePoint(digit + Number(letter)) : letter;
  }).join("");
}
