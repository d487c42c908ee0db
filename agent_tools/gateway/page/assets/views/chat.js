// The conversation: what is said goes to /v1/responses, as any client's would, and is shown while it comes.
//
// Responses are made in the background and followed as a stream, so that a reload, or a connection that breaks, costs
// nothing: the events that were missed are asked for by their numbers. Only the last response's id is kept for a reload;
// what was said is read from the gateway again, along `previous_response_id`.

import { $, button, of } from "../elements.js";
import { ask, asked, eventsOf, Refusal } from "../gateway.js";
import { keep, kept } from "../kept.js";
import { viewOf } from "./items.js";
import { question, Turn } from "./turn.js";

const MAX_TURNS = 50; // that are read again
const RETRIES = 3; // of a stream that broke
const GONE = "The container of before is gone: the code gets a new one, without its variables and files.";
const PROMPTS = [
  ["Simulate", "Simulate 10,000 rolls of two dice and draw how often each sum comes up."],
  ["Explore", "Make a small table of monthly sales for three shops, save it as sales.csv, and show who grew most."],
  ["Compute", "Which day of the week was 29 February 2000, and how many Fridays the 13th were there that year?"],
];

export class Chat {
  #place;
  #attachments;
  #turn = null; // that is under way
  #abort = null;
  #previous = null; // the id of the last response
  #shown = 0; // counts conversations: whoever waited finds out if another one is shown meanwhile

  constructor(place, attachments) {
    this.#place = place;
    this.#attachments = attachments;
    $("prompt").value = kept("prompt", "");
    $("ask").addEventListener("submit", (event) => event.preventDefault() ?? this.send());
    $("cancel").addEventListener("click", () => this.stop());
    $("new-chat").addEventListener("click", () => this.begin());
    $("prompt").addEventListener("input", () => keep("prompt", $("prompt").value));
    $("prompt").addEventListener("keydown", (event) => this.#typed(event));
    $("model").addEventListener("change", () => keep("model", $("model").value));
    this.#empty();
  }

  // -- what there is to choose ----------------------------------------------------------------------------------------

  /** Reads the upstream's models. */
  async readModels() {
    try {
      const { data } = await asked("v1/models");
      const names = data.map(({ id }) => String(id));
      $("model").replaceChildren(...names.map((name) => of("option", { value: name }, name)));
      if (names.includes(kept("model"))) $("model").value = kept("model");
      this.#notice(names.length ? "" : "The upstream names no models.");
    } catch (error) {
      this.#notice(`No model to talk to: ${error.message}`);
    }
  }

  #notice(text) {
    $("notice").replaceChildren(text, ...(text ? [button(".link", "Try again", () => this.readModels())] : []));
    $("model").hidden = !$("model").options.length;
    this.#enable();
  }

  #enable() {
    $("send").disabled = Boolean(this.#turn) || !$("model").value;
    $("cancel").hidden = !this.#turn;
    $("cancel").disabled = Boolean(this.#turn?.isStopped);
    $("send").hidden = Boolean(this.#turn);
  }

  #empty() {
    const offers = PROMPTS.map(([title, text]) => {
      const offer = button(".offer", of("b", {}, title), () => this.#offered(text));
      offer.append(of("span", {}, text));
      return offer;
    });
    const says = of("p", {}, "The model writes Python; it runs here, in a sandbox of its own, before your eyes.");
    const title = of("h2", {}, "What should be worked out?");
    const empty = of("div.empty", {}, title, says, of("div.offers", {}, ...offers));
    $("transcript").replaceChildren(empty);
  }

  #offered(text) {
    $("prompt").value = text;
    $("prompt").focus();
  }

  // -- a conversation -------------------------------------------------------------------------------------------------

  /** Begins a new conversation, in a container of its own. */
  begin() {
    this.#leave();
    this.#previous = null;
    keep("response", null);
    this.#place.use(null);
    this.#empty();
    $("prompt").focus();
  }

  /** Shows a stored response with what came before it, and goes on from there. */
  async open(id) {
    const shown = this.#leave();
    try {
      const chain = await chainOf(id);
      if (this.#shown !== shown) return;
      $("transcript").replaceChildren();
      if (chain[0].previous_response_id) this.#note("Earlier turns are not shown.");
      for (const body of chain) if (this.#shown === shown) await this.#again(body, shown);
      if (this.#shown === shown) scrollBy(0, hidden());
    } catch (error) {
      if (this.#shown !== shown) return;
      $("transcript").replaceChildren();
      this.#note(`The conversation cannot be shown: ${error.message}`);
      keep("response", null);
    }
  }

  /** Goes on after a reload. */
  async resume() {
    if (kept("response")) await this.open(kept("response"));
  }

  async #again(body, shown) {
    const input = await asked(`v1/responses/${body.id}/input_items?order=asc&limit=100`);
    if (this.#shown !== shown) return;
    for (const item of input.data) this.#given(item);
    if (input.has_more) this.#note("More of its input is not shown.");
    const isLive = ["queued", "in_progress"].includes(body.status); // it goes on, and is shown from its first event
    const turn = new Turn($("transcript"), { open: this.#place.open, isLive });
    if (isLive) turn.body = body;
    else turn.show(body);
    this.#reached(turn);
    if (isLive) await this.#follow(turn, (signal) => this.#streamOf(body.id, -1, signal));
  }

  /** Shows an item of a response's input: who resends all has earlier answers in it. */
  #given(item) {
    if (item.type === "message" && item.role !== "assistant") {
      if (item.role === "user") $("transcript").append(question(item));
      else this.#note(`${item.role}: ${question(item).textContent}`);
      return;
    }
    const view = viewOf(item, () => {});
    view.end(item);
    $("transcript").append(of("div.answer", {}, view.box));
  }

  #note(text) {
    $("transcript").append(of("p.note", {}, text));
  }

  /** Leaves what is shown; returns the number of what is shown from now on. */
  #leave() {
    if (!this.#turn?.isStopped) this.#abort?.abort(); // else its stream still has to tell what is to be cancelled
    this.#turn = null;
    this.#enable();
    return ++this.#shown;
  }

  // -- asking ---------------------------------------------------------------------------------------------------------

  async send() {
    const text = $("prompt").value.trim();
    if (this.#turn || !$("model").value || (!text && !this.#attachments.ids.length)) return;
    if (this.#attachments.isBusy) return this.#notice("A file is still on its way.");
    const files = this.#attachments.take();
    const item = { role: "user", content: [...files.map(({ id }) => ({ type: "input_file", file_id: id }))] };
    if (text) item.content.push({ type: "input_text", text });
    if (!this.#previous) $("transcript").replaceChildren();
    const shown = files.map(({ id, name }) => ({ type: "input_file", file_id: id, filename: name }));
    $("transcript").append(question({ content: [...shown, { text }] }));
    $("prompt").value = "";
    keep("prompt", "");
    const conversation = this.#shown;
    const isGone = this.#isNamed && (await this.#place.isGone());
    if (this.#shown !== conversation) return;
    if (isGone) this.#note(GONE);
    const turn = new Turn($("transcript"), { open: this.#place.open });
    await this.#follow(turn, (signal) => ask("v1/responses", { json: this.#request(item), signal }));
  }

  /** The container is named in the request, since the conversation does not have it. */
  get #isNamed() {
    return Boolean(this.#place.container && (this.#place.isChosen || !this.#previous));
  }

  #request(item) {
    const tool = { type: "code_interpreter", container: this.#isNamed ? this.#place.container : { type: "auto" } };
    return {
      model: $("model").value,
      input: [item],
      previous_response_id: this.#previous,
      tools: $("with-code").checked ? [tool] : [],
      include: ["code_interpreter_call.outputs"],
      background: true,
      stream: true,
    };
  }

  #streamOf(id, after, signal) {
    return ask(`v1/responses/${id}?stream=true&starting_after=${after}`, { signal });
  }

  /** Shows a turn to its end; a stream that breaks is asked for again, from where it broke. */
  async #follow(turn, stream) {
    this.#turn = turn;
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    this.#enable();
    scrollBy(0, hidden());
    for (let left = RETRIES; !turn.hasEnded && !signal.aborted; left--) {
      try {
        for await (const event of eventsOf(await stream(signal))) this.#apply(turn, event);
        if (turn.hasEnded || !turn.body || !left) break;
      } catch (error) {
        if (signal.aborted) break;
        if (error instanceof Refusal && error.status) return this.#failed(turn, error.message);
        const message = error instanceof Refusal ? error.message : "The connection broke off";
        if (!turn.body || !left) return this.#failed(turn, message);
      }
      stream = (again) => this.#streamOf(turn.body.id, turn.last, again);
      await new Promise((resolve) => setTimeout(resolve, 500 * (RETRIES + 1 - left)));
    }
    if (!signal.aborted && !turn.hasEnded) turn.fail("The gateway hung up before the response had ended");
    if (this.#turn === turn) this.#finish(turn);
  }

  #failed(turn, message) {
    turn.fail(message);
    if (this.#turn === turn) this.#finish(turn);
  }

  #apply(turn, event) {
    if (event.type === "response.created" && turn.isStopped) this.#cancel(turn, event.response.id);
    if (this.#turn !== turn) return;
    const follows = hidden() < 160; // else someone reads further up
    turn.apply(event);
    if (event.type === "response.created") this.#reached(turn);
    if (follows) scrollBy(0, hidden());
  }

  /** A response is there to go on from. */
  #reached(turn) {
    this.#previous = turn.body.id;
    keep("response", turn.body.id);
    if (turn.container) this.#place.use(turn.container, { isChosen: false });
  }

  #finish(turn) {
    this.#turn = null;
    this.#enable();
    if (turn.container) this.#place.use(turn.container, { isChosen: false });
    this.#place.changed();
  }

  /** Ends the response that is under way, as soon as its id is known; its stream then tells how it ended. */
  async stop() {
    const turn = this.#turn;
    if (!turn || turn.isStopped) return;
    turn.isStopped = true;
    this.#enable();
    if (turn.body) await this.#cancel(turn, turn.body.id);
  }

  async #cancel(turn, id) {
    await ask(`v1/responses/${id}/cancel`, { method: "POST" }).catch((error) => turn.fail(error.message));
  }

  #typed(event) {
    if (event.key === "Escape" && this.#turn) this.stop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }
}

/** The pixels of the conversation's end that lie below the place for a question. */
const hidden = () => Math.max(0, $("transcript").getBoundingClientRect().bottom - $("ask").getBoundingClientRect().top);

/** A response and those before it, oldest first. */
async function chainOf(id) {
  const chain = [];
  for (let next = id; next && chain.length < MAX_TURNS; next = chain[0].previous_response_id) {
    chain.unshift(await asked(`v1/responses/${encodeURIComponent(next)}?include[]=code_interpreter_call.outputs`));
  }
  return chain;
}
