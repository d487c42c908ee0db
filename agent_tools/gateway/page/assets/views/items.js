// The items of a response, each as an element that grows while its events come.

import { of } from "../elements.js";
import { keep, kept } from "../kept.js";
import { highlighted } from "../text/highlight.js";
import { Output } from "../text/output.js";
import { codeBlock, prose } from "../text/prose.js";

const LIVE_CODE = 8_000; // characters that are coloured while they come
const STATES = {
  ...{ in_progress: "writing", interpreting: "running" },
  ...{ completed: "done", failed: "failed", incomplete: "stopped" },
};
const STOPPED = "KeyboardInterrupt";
let calls = 0; // so that each has a name of its own

/** Draws again at most once in a while: no sooner than ten times what the last drawing took. */
class Redraw {
  #draw;
  #pause = 30; // milliseconds
  #timer = null;

  constructor(draw) {
    this.#draw = draw;
  }

  soon() {
    this.#timer ??= setTimeout(() => this.now(), this.#pause);
  }

  now() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const start = performance.now();
    this.#draw();
    this.#pause = Math.max(30, 10 * (performance.now() - start));
  }
}

/** What the model says. */
export class MessageItem {
  #text = "";
  #redraw;

  constructor(_, open) {
    this.box = of("div.prose");
    this.#redraw = new Redraw(() => this.box.replaceChildren(prose(this.#text, open)));
  }

  get text() {
    return this.#text;
  }

  apply({ type, delta }) {
    if (type !== "response.output_text.delta" && type !== "response.refusal.delta") return;
    this.#text += delta;
    this.#redraw.soon();
  }

  end(item) {
    const parts = typeof item.content === "string" ? [{ text: item.content }] : item.content ?? [];
    this.#text = parts.map((part) => part.text ?? part.refusal ?? "").join("\n\n");
    this.#redraw.now();
  }
}

/** What the model thinks, folded away. */
export class ReasoningItem {
  #text = document.createTextNode("");

  constructor() {
    this.box = of("details.thinking", { hidden: true }, of("summary", {}, "Thinking"), of("p", {}, this.#text));
  }

  apply({ type, delta }) {
    if (!type.startsWith("response.reasoning") || !type.endsWith(".delta")) return;
    this.#text.appendData(delta);
    this.box.hidden = false;
  }

  end({ content, summary }) {
    const texts = [...(content ?? []), ...(summary ?? [])].map(({ text }) => text ?? "");
    this.#text.data = texts.join("\n\n") || this.#text.data;
    this.box.hidden = !this.#text.data.trim();
  }
}

/** Code, from its first letter to its outputs, which come while it runs, with the time that it took as this page saw it. */
export class CodeItem {
  #code = "";
  #element = of("code");
  #state = of("span.state", { role: "status" });
  #outputs = of("div.outputs");
  #live = new Output(this.#outputs);
  #redraw = new Redraw(() => this.#draw());
  #clock = null;
  #times = null; // milliseconds
  #id;

  constructor({ id, status }) {
    this.#id = id;
    const head = of("div.head", {}, of("b", {}, "Python"), this.#state);
    const code = of("pre", { tabIndex: 0 }, this.#element);
    this.box = of("section.call", { ariaLabel: `Code ${++calls}` }, head, code, this.#outputs);
    this.#say(STATES[status ?? "in_progress"] ?? status);
  }

  apply({ type, delta, code, output }) {
    if (type === "agent_tools.output") return this.#shown(output);
    if (type === "response.code_interpreter_call_code.delta") this.#code += delta;
    else if (type === "response.code_interpreter_call_code.done") this.#code = code;
    else if (type === "response.code_interpreter_call.interpreting") return this.#run();
    else return;
    this.#redraw.soon();
  }

  end({ code, outputs, status }) {
    clearInterval(this.#clock);
    if (this.#times) keep(this.#id, (this.#times = { ended: Date.now(), ...this.#times }));
    this.#code = code ?? "";
    const error = errorOf(outputs ?? []);
    this.#say(error === STOPPED || status === "incomplete" ? "stopped" : error ? "failed" : STATES[status] ?? status, error);
    this.#redraw.now();
    const output = new Output(this.#outputs);
    output.clear();
    for (const { type, logs, url, figure, error: title } of outputs ?? []) {
      if (type === "image" || figure) output.show({ kind: "image", url, figure, text: logs });
      else output.show({ kind: title ? "error" : "logs", text: logs, title });
    }
  }

  /** Shows an output of running code; an interactive figure as its picture until the code has ended. */
  #shown({ figure, ...output }) {
    this.#live.show(figure ? { ...output, kind: output.url ? "image" : "result" } : output);
  }

  /** Says that the response was stopped while this code ran, although the code may look as if it had ended. */
  interrupted() {
    if (this.box.dataset.state === "done") this.#say("stopped");
  }

  /** Stops the clock: nothing more comes. */
  stop() {
    clearInterval(this.#clock);
    if (["writing", "running"].includes(this.box.dataset.state)) this.#say("stopped");
  }

  #run() {
    this.#times = kept(this.#id, { began: Date.now() }); // there are some after a reload
    keep(this.#id, this.#times);
    this.#say("running");
    this.#redraw.soon();
    this.#clock = setInterval(() => this.#say("running"), 100);
  }

  #say(state, error = "") {
    const { began, ended = Date.now() } = this.#times ?? {};
    const seconds = began ? ` ${((ended - began) / 1000).toFixed(1)} s` : "";
    this.box.dataset.state = state;
    this.#state.textContent = (state === "failed" && error ? error : state) + seconds;
  }

  #draw() {
    const isLong = this.box.dataset.state === "writing" && this.#code.length > LIVE_CODE;
    this.#element.replaceChildren(isLong ? this.#code : highlighted(this.#code, "python"));
  }
}

/** The name of the error that ended the code; "" if none did. A client that asked for no more has it in a traceback. */
function errorOf(outputs) {
  const error = outputs.findLast((each) => each.error)?.error;
  const { logs } = outputs.findLast(({ type }) => type === "logs") ?? {};
  if (error || !/^(?:-{20,}\n\w|Traceback \(most recent call last\))/.test(logs ?? "")) return error ?? "";
  return /^([\w.]{1,80})(?::.*)?$/.exec(logs.trimEnd().split("\n").at(-1))?.[1] ?? "error";
}

/** Commands of the shell, and what they print. */
export class ShellItem {
  #commands = of("code");

  constructor() {
    const head = of("div.head", {}, of("b", {}, "Shell"));
    this.box = of("section.call", { ariaLabel: `Commands ${++calls}` }, head, of("pre", { tabIndex: 0 }, this.#commands));
  }

  apply() {} // the commands come whole

  end({ action }) {
    this.#commands.replaceChildren(highlighted((action?.commands ?? []).map((each) => `$ ${each}`).join("\n"), "sh"));
  }
}

/** What the commands printed. */
export class ShellOutputItem {
  #output;

  constructor() {
    this.box = of("div.outputs");
    this.#output = new Output(this.box);
  }

  apply() {}

  end({ output }) {
    this.#output.clear();
    for (const { stdout, stderr, outcome } of Array.isArray(output) ? output : []) {
      this.#output.show({ kind: "stdout", text: stdout });
      this.#output.show({ kind: "stderr", text: stderr });
      if (outcome?.type === "timeout") this.#output.show({ kind: "note", text: "The time limit was reached." });
      else if (outcome?.exit_code) this.#output.show({ kind: "note", text: `exit code ${outcome.exit_code}` });
    }
  }
}

/** Any other item, such as the call of a client's function: as the JSON that it is. */
export class OtherItem {
  constructor({ type }) {
    this.box = of("details.other", {}, of("summary", {}, type ?? "item"));
  }

  apply() {}

  end(item) {
    const title = [item.type, item.name].filter(Boolean).join(": ");
    this.box.replaceChildren(of("summary", {}, title), codeBlock(JSON.stringify(item, null, 2), "json"));
  }
}

const KINDS = {
  message: MessageItem,
  reasoning: ReasoningItem,
  code_interpreter_call: CodeItem,
  shell_call: ShellItem,
  shell_call_output: ShellOutputItem,
};

/** Makes the view of an item. `open(path)` downloads a file of its container. */
export const viewOf = (item, open) => new (Object.hasOwn(KINDS, item.type) ? KINDS[item.type] : OtherItem)(item, open);
