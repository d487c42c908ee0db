// One turn of a conversation: what was asked, and the response as its events come, or as it is stored.

import { button, copier, of } from "../elements.js";
import { ask, save } from "../gateway.js";
import { MessageItem, viewOf } from "./items.js";

const ENDS = new Set(["completed", "failed", "incomplete", "cancelled"]);

export class Turn {
  #answer = of("div.answer");
  #foot = of("p.foot");
  #views = new Map(); // by output_index
  #open;
  #again;
  #facts = "";
  body = null; // of the response, once it is known
  isStopped = false; // the user wants it to end
  last = -1; // the number of the last event that was seen

  /** `open(container, path)` downloads a file; `again()` asks the same once more, if it can be. */
  constructor(place, { open, again = null }) {
    this.#open = (path) => open(this.container, path);
    this.#again = again;
    this.#answer.dataset.state = "waiting";
    place.append(this.#answer, this.#foot);
  }

  get hasEnded() {
    return ENDS.has(this.body?.status);
  }

  /** The container that its calls name; null if none was made. */
  get container() {
    return this.body?.output?.findLast?.((item) => item.container_id)?.container_id ?? null;
  }

  /** What the model said in it. */
  get text() {
    const messages = [...this.#views.values()].filter((view) => view instanceof MessageItem);
    return messages.map(({ text }) => text).join("\n\n");
  }

  apply(event) {
    this.last = event.sequence_number ?? this.last;
    if (event.response) this.body = event.response;
    if (event.type === "response.output_item.added") this.#view(event.output_index, event.item);
    else if (event.type === "response.output_item.done") this.#view(event.output_index, event.item).end(event.item);
    else if (event.output_index !== undefined) this.#views.get(event.output_index)?.apply(event);
    if (event.type === "error") this.fail(event.message ?? event.error?.message);
    if (this.hasEnded) this.#end();
  }

  /** Shows a response that is stored. */
  show(body) {
    this.body = body;
    body.output.forEach((item, index) => this.#view(index, item).end(item));
    if (this.hasEnded) this.#end();
  }

  /** Says why there is no more. */
  fail(message) {
    this.#stop();
    this.#offer();
    const known = [...this.#answer.querySelectorAll(".failure")].some((each) => each.textContent === message);
    if (message && !known) this.#answer.append(of("p.failure", { role: "alert" }, message));
  }

  #view(index, item) {
    let view = this.#views.get(index);
    if (!view) {
      view = viewOf(item, this.#open);
      this.#views.set(index, view);
      this.#answer.append(view.box);
    }
    return view;
  }

  #stop() {
    this.#answer.dataset.state = "ended";
    for (const view of this.#views.values()) view.stop?.();
  }

  #end() {
    this.#stop();
    const { status, error, incomplete_details: details } = this.body;
    if (error) this.fail(error.message);
    if (status === "cancelled") [...this.#views.values()].at(-1)?.interrupted?.();
    const incomplete = `incomplete: ${details?.reason ?? "unknown reason"}`;
    const ending = { cancelled: "stopped", failed: "failed", incomplete }[status];
    const facts = [this.body.model, ending, this.#time(), tokensOf(this.body.usage)].filter(Boolean).join(" · ");
    this.#facts = facts;
    this.#offer();
  }

  #offer() {
    const copy = this.text ? copier(() => this.text, "Copy answer") : null;
    const again = this.#again ? button(".quiet", "Again", this.#again, { title: "Ask the same once more, from here" }) : null;
    const saved = this.hasEnded && this.body.store ? button(".quiet", "Save as notebook", () => this.#saveNotebook()) : null;
    this.#foot.replaceChildren(...[of("span", {}, this.#facts), copy, again, saved].filter(Boolean));
  }

  async #saveNotebook() {
    try {
      const answer = await ask(`v1/responses/${this.body.id}/notebook`);
      save(await answer.blob(), `${this.body.id}.ipynb`);
    } catch (error) {
      this.fail(error.message);
    }
  }

  /** The time it took by the gateway's clock, in whole seconds: the same while it is made, and when it is read again. */
  #time() {
    const { created_at: start, completed_at: end } = this.body;
    return !end ? "" : end > start ? `${end - start} s` : "under 1 s";
  }

  /** Takes the turn off the page. */
  remove() {
    this.#answer.remove();
    this.#foot.remove();
  }
}

export function tokensOf(usage) {
  const number = (count) => count.toLocaleString("en");
  return usage ? `${number(usage.input_tokens)} tokens in, ${number(usage.output_tokens)} out` : "";
}

/** The question of a user or a client; `edit` is called to change it, if it can be. */
export function question(item, edit = null) {
  const parts = typeof item.content === "string" ? [{ text: item.content }] : item.content ?? [];
  const text = parts.map((part) => part.text ?? "").filter(Boolean).join("\n");
  const files = parts.filter(({ type }) => type === "input_file" || type === "input_image");
  const chips = files.map(({ filename, file_id: id, type }) => of("span.chip", {}, filename ?? id ?? type.slice(6)));
  const bubble = of("div.question", {}, text, ...(chips.length ? [of("div.chips", {}, ...chips)] : []));
  if (!edit) return bubble;
  return of("div.asked", {}, button(".quiet.edit", "Edit", edit, { title: "Change the question and ask again from here" }), bubble);
}
