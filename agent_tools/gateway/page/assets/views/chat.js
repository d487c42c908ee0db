// The conversation: what is said goes to /v1/responses, as any client's would, and is shown while it comes.
//
// Responses are made in the background and followed as a stream, so that a reload, or a connection that breaks, costs
// nothing: the events that were missed are asked for by their numbers. Only the last response's id is kept for a reload;
// what was said is read from the gateway again, along `previous_response_id`.

import { $, button, of } from "../elements.js";
import { ask, asked, eventsOf, Refusal } from "../gateway.js";
import { keep, keepField, kept } from "../kept.js";
import { attachedTo, Chats, forget } from "../panels/chats.js";
import { Choices } from "./choices.js";
import { Follow } from "./follow.js";
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
  #follow = new Follow(() => Boolean(this.#turn));
  #turns = []; // what is shown, in order: { item, box, previous, turn }
  #turn = null; // that is under way
  #abort = null;
  #previous = null; // the id of the last response
  #isOpening = Boolean(kept("response")); // a stored conversation, which is what the next question belongs to
  #shown = 0; // counts conversations: a function that waited learns that another one took its place
  choices = new Choices(() => this.#enable());
  chats = new Chats({ open: (id) => this.#toChat() ?? this.open(id), left: () => this.begin() });

  constructor(place, attachments) {
    this.#place = place;
    this.#attachments = attachments;
    keepField($("prompt"), "prompt");
    $("ask").addEventListener("submit", (event) => event.preventDefault() ?? this.send());
    $("cancel").addEventListener("click", () => this.stop());
    $("new-chat").addEventListener("click", () => this.begin());
    $("prompt").addEventListener("keydown", (event) => this.#typed(event));
    this.#empty();
  }

  /** Shows the conversation where it was left. */
  back() {
    this.#follow.back();
  }

  get #canAsk() {
    return !this.#turn && !this.#isOpening && Boolean(this.choices.model);
  }

  #enable() {
    $("send").disabled = !this.#canAsk;
    $("cancel").hidden = !this.#turn;
    $("cancel").disabled = Boolean(this.#turn?.isStopped);
    $("send").hidden = Boolean(this.#turn);
    document.body.classList.toggle("answering", Boolean(this.#turn));
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
    this.#turns = [];
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
    this.chats.enter(null);
    keep("response", null);
    this.#place.use(null);
    this.#empty();
    $("prompt").focus();
  }

  /** Shows a stored response with what came before it, and goes on from there. */
  async open(id) {
    const shown = this.#leave();
    this.#opening(true);
    try {
      const chain = await chainOf(id);
      if (this.#shown !== shown) return;
      this.#turns = [];
      $("transcript").replaceChildren();
      this.chats.enter(chain.at(-1).metadata?.page_chat ?? null);
      this.#follow.toEnd();
      if (chain[0].previous_response_id) this.#note("Earlier turns are not shown.");
      for (const body of chain) if (this.#shown === shown) await this.#again(body, shown);
    } catch (error) {
      if (this.#shown !== shown) return;
      $("transcript").replaceChildren();
      this.#note(`The conversation cannot be shown: ${error.message}`);
      keep("response", null);
    } finally {
      if (this.#shown === shown) this.#opening(false);
    }
  }

  #opening(isOpening) {
    this.#isOpening = isOpening;
    this.#enable();
  }

  #toChat() {
    location.hash = "chat";
  }

  /** Goes on after a reload. */
  async resume() {
    if (kept("response")) await this.open(kept("response"));
  }

  async #again(body, shown) {
    const input = await asked(`v1/responses/${body.id}/input_items?order=asc&limit=100`);
    if (this.#shown !== shown) return;
    const entry = { item: input.data.length === 1 ? input.data[0] : null, previous: body.previous_response_id };
    for (const item of input.data) this.#given(item, entry);
    if (input.has_more) this.#note("More of its input is not shown.");
    const isLive = ["queued", "in_progress"].includes(body.status); // it goes on, and is shown from its first event
    const turn = this.#newTurn(entry);
    if (isLive) Object.assign(turn, { body, chat: this.chats.id, hasOwnContainer: !this.#place.isChosen });
    else turn.show(body);
    this.#reached(turn);
    if (isLive) await this.#through(turn, (signal) => this.#streamOf(body.id, -1, signal));
  }

  /** Shows an item of a response's input: who resends all has earlier answers in it. */
  #given(item, entry) {
    if (item.type === "message" && item.role !== "assistant") {
      if (item.role !== "user") return this.#note(`${item.role}: ${question(item).textContent}`);
      entry.box = question(item, entry.item && (() => this.#edit(entry)));
      $("transcript").append(entry.box);
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
    this.#opening(false);
    return ++this.#shown;
  }

  // -- asking ---------------------------------------------------------------------------------------------------------

  async send() {
    const text = $("prompt").value.trim();
    if (!this.#canAsk || (!text && !this.#attachments.ids.length)) return;
    if (this.#attachments.isBusy) return this.choices.say("A file is still on its way.", false);
    const files = this.#attachments.take();
    const content = files.map(({ id, name }) => ({ type: "input_file", file_id: id, filename: name }));
    if (text) content.push({ type: "input_text", text });
    if (!this.#previous) $("transcript").replaceChildren();
    $("prompt").value = "";
    keep("prompt", "");
    this.choices.say("");
    await this.#ask({ role: "user", content });
  }

  /** Shows a question and asks it. */
  async #ask(item) {
    const entry = { item, previous: this.#previous };
    entry.box = question(item, () => this.#edit(entry));
    $("transcript").append(entry.box);
    this.#follow.toEnd();
    await this.#answer(entry);
  }

  /** Asks a question that is shown. */
  async #answer(entry) {
    const conversation = this.#shown;
    const isNamed = this.#isNamed;
    const isGone = Boolean(this.#place.container) && (await this.#place.isGone());
    const chat = await this.chats.needed(textOf(entry.item) || "Files");
    if (this.#shown !== conversation) return;
    if (isGone) this.#note(GONE);
    const turn = this.#newTurn(entry);
    turn.chat = chat;
    turn.hasOwnContainer = !isNamed || isGone;
    const json = this.#request(entry.item, chat);
    await this.#through(turn, (signal) => ask("v1/responses", { json, signal }));
  }

  #newTurn(entry) {
    entry.turn = new Turn($("transcript"), { open: this.#place.open, again: entry.item && (() => this.#anew(entry)) });
    this.#turns.push(entry);
    return entry.turn;
  }

  /** Asks a question once more: what was said after it is taken back, here and at the gateway. */
  #anew(entry) {
    if (!this.#canAsk) return;
    this.#takeBack(entry);
    this.#follow.toEnd();
    this.#answer(entry);
  }

  /** Puts a question into a field, and asks what it is changed to. */
  #edit(entry) {
    if (!this.#canAsk || !this.#turns.includes(entry)) return;
    const field = of("textarea", { value: textOf(entry.item), ariaLabel: "Changed question", rows: 3 });
    const end = () => form.replaceWith(entry.box);
    const form = of("form.card.editing", {}, field, of("div.row", {}, of("span.space"), button(".quiet", "Cancel", end), of("button.primary", {}, "Ask again")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!text || !this.#canAsk) return;
      this.#takeBack(entry);
      form.remove();
      const files = partsOf(entry.item).filter(({ type }) => type !== "input_text");
      this.#ask({ role: "user", content: [...files, { type: "input_text", text }] });
    });
    entry.box.replaceWith(form);
    field.focus();
  }

  /** Takes a turn and those after it off the page, and deletes those that this conversation made. */
  #takeBack(entry) {
    const dropped = this.#turns.splice(this.#turns.indexOf(entry));
    for (const each of dropped) {
      if (each !== entry) each.box?.remove();
      each.turn.remove();
    }
    const last = dropped.findLast(({ turn }) => turn.body)?.turn.body.id;
    if (last && this.chats.id) forget(last, this.chats.id, entry.previous, attachedTo(entry.item));
    this.#previous = entry.previous;
    keep("response", entry.previous);
  }

  /** The container is named in the request, since the conversation does not have it. */
  get #isNamed() {
    return Boolean(this.#place.container && (this.#place.isChosen || !this.#previous));
  }

  #request({ role, content }, chat) {
    const tool = { type: "code_interpreter", container: this.#isNamed ? this.#place.container : { type: "auto" } };
    const sent = (part) => (part.type === "input_file" ? { type: part.type, file_id: part.file_id } : part);
    return {
      model: this.choices.model,
      input: [{ role, content: typeof content === "string" ? content : content.map(sent) }],
      previous_response_id: this.#previous,
      tools: this.choices.runsCode ? [tool] : [],
      include: ["code_interpreter_call.outputs", "agent_tools.outputs"],
      background: true,
      stream: true,
      ...(chat && { metadata: { page_chat: chat } }),
      ...this.choices.fields,
    };
  }

  #streamOf(id, after, signal) {
    return ask(`v1/responses/${id}?stream=true&starting_after=${after}`, { signal });
  }

  /** Shows a turn to its end; a stream that breaks is asked for again, from where it broke. */
  async #through(turn, stream) {
    this.#turn = turn;
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    this.#opening(false);
    this.#follow.toEnd();
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
    turn.apply(event);
    if (event.type === "response.created") this.#reached(turn);
  }

  /** A response is there to go on from. */
  #reached(turn) {
    this.#previous = turn.body.id;
    keep("response", turn.body.id);
    if (turn.container) this.#place.use(turn.container, { isChosen: false });
    if (turn.chat) this.chats.note(turn.chat, turn.body.id);
  }

  #finish(turn) {
    this.#turn = null;
    this.#enable();
    if (turn.chat && turn.container && turn.hasOwnContainer) this.chats.note(turn.chat, turn.body.id, turn.container);
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
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }
}

const partsOf = ({ content }) => (typeof content === "string" ? [{ type: "input_text", text: content }] : content ?? []);
const textOf = (item) => partsOf(item).map(({ text }) => text ?? "").filter(Boolean).join("\n");

/** A response and those before it, oldest first. */
async function chainOf(id) {
  const chain = [];
  for (let next = id; next && chain.length < MAX_TURNS; next = chain[0].previous_response_id) {
    const path = `v1/responses/${encodeURIComponent(next)}?include[]=code_interpreter_call.outputs`;
    const body = await asked(path).catch((error) => (chain.length && error.status === 404 ? null : Promise.reject(error)));
    if (!body) break; // it was deleted, or is older than the gateway keeps
    chain.unshift(body);
  }
  return chain;
}
