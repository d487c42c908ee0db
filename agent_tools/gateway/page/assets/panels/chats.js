// The conversations that were held on this page, by their first words, to be opened, renamed and deleted.
//
// Each is a conversation of /v1/conversations without items: its metadata has its title, its last response and the
// container that it made. So the list is the same in every browser with this key, and the gateway's retention holds for it.

import { $, ago, button, of } from "../elements.js";
import { ask, asked } from "../gateway.js";
import { keep, kept } from "../kept.js";

const MAX_TITLE = 80; // characters
const MAX_DELETED = 500; // responses of one conversation

/** The first words of a question. */
const titleOf = (text) => {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length <= MAX_TITLE ? line || "Files" : `${line.slice(0, MAX_TITLE - 1).replace(/ [^ ]*$/, "")}…`;
};

export class Chats {
  #open;
  #left; // called when the conversation that is shown was deleted
  #shown = []; // { id, notes, used_at }
  #current = kept("chat"); // the id of the chat on the page

  /** `open(response)` shows a conversation; `left()` begins a new one. */
  constructor({ open, left }) {
    this.#open = open;
    this.#left = left;
  }

  get id() {
    return this.#current;
  }

  /** Is in a conversation from now on; null: in none that is listed. */
  enter(id) {
    this.#current = id;
    keep("chat", id);
    for (const row of $("chats").children) this.#mark(row);
  }

  /** Returns the id of the conversation that goes on with a question; makes one if there is none. */
  async needed(text) {
    if (this.#current) return this.#current;
    const metadata = { page_title: titleOf(text), page_response: "" };
    const made = await asked("v1/conversations", { json: { metadata } }).catch(() => null); // there may be no room
    if (made) this.enter(made.id);
    return made?.id ?? null;
  }

  /** Notes how a conversation goes on. */
  async note(id, response, container) {
    const known = this.#shown.find((each) => each.id === id)?.notes ?? (await this.#notesOf(id));
    if (!known) return;
    const notes = { ...known, page_response: response, ...(container && { page_container: container }) };
    await this.#save(id, notes);
  }

  /** The title of a container's conversation; null if no conversation made it. */
  titleFor = (container) => this.#shown.find(({ notes }) => notes.page_container === container)?.notes.page_title ?? null;

  async refresh() {
    const found = await asked("page/chats").catch(() => null);
    if (found) this.#list(found.chats.filter(({ notes }) => notes.page_response), found.now);
  }

  #notesOf = async (id) => (await asked(`v1/conversations/${id}`).catch(() => null))?.metadata;

  async #save(id, metadata) {
    await ask(`v1/conversations/${id}`, { json: { metadata } }).catch(() => null); // it was deleted elsewhere
    await this.refresh();
  }

  #list(chats, now) {
    this.#shown = chats;
    if ($("chats").querySelector("input, .sure")) return; // the user is about to rename or delete one
    $("chats").replaceChildren(...chats.map((chat) => this.#row(chat, now)));
    $("chats-card").hidden = !chats.length;
  }

  #row(chat, now) {
    const title = chat.notes.page_title || "Untitled";
    const show = button(".link.name", title, () => this.#show(chat), { title });
    const rename = button(".drop", "✎", () => this.#rename(row, chat), { title: "Rename", ariaLabel: `Rename ${title}` });
    const drop = button(".drop", "×", () => this.#ask(row, chat), { title: "Delete", ariaLabel: `Delete chat ${title}` });
    const row = of("li", {}, show, rename, drop, of("span.facts", {}, ago(Math.max(0, now - chat.used_at))));
    row.dataset.id = chat.id;
    return this.#mark(row);
  }

  #mark(row) {
    row.classList.toggle("current", row.dataset.id === this.#current);
    return row;
  }

  #show(chat) {
    this.enter(chat.id);
    this.#open(chat.notes.page_response);
  }

  #rename(row, chat) {
    const field = of("input", { value: chat.notes.page_title ?? "", ariaLabel: "Title", maxLength: 200 });
    let hasEnded = false; // a field that is removed loses the focus
    const end = async (title) => {
      if (hasEnded) return;
      hasEnded = true;
      field.remove();
      if (title && title !== chat.notes.page_title) await this.#save(chat.id, { ...chat.notes, page_title: title });
      else await this.refresh();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      end(event.key === "Enter" ? field.value.trim() : "");
    });
    field.addEventListener("blur", () => end(field.value.trim()));
    row.replaceChildren(field);
    field.focus();
    field.select();
  }

  #ask(row, chat) {
    const back = () => row.replaceChildren() ?? this.refresh();
    const sure = button(".danger.sure", "Delete", async () => back(await this.#delete(chat)), { title: "With its files" });
    row.replaceChildren(of("span.name", {}, "Delete it?"), sure, button(".quiet", "Keep", back));
    sure.focus();
  }

  /** Deletes a conversation with the responses and uploads that this page made for it, and with its container. */
  async #delete({ id, notes }) {
    if (id === this.#current) this.#left();
    const made = await asked(`page/chats/${id}/container`).catch(() => null); // no answer names it if no code ran
    const container = notes.page_container ?? made?.container;
    await ask(`v1/conversations/${id}`, { method: "DELETE" }).catch(() => null);
    await forget(notes.page_response, id);
    const isShared = this.#shown.some((each) => each.id !== id && each.notes.page_container === container);
    if (!container || isShared) return;
    await ask(`v1/containers/${container}`, { method: "DELETE" }).catch(() => null); // it has expired
  }
}

/**
 * Deletes a response and those before it, up to `last`, as far as a conversation made them, with the files that went with
 * their questions; those of `staying` are asked about again.
 */
export async function forget(response, chat, last = null, staying = []) {
  for (let [id, left] = [response, MAX_DELETED]; id && id !== last && left; left--) {
    const body = await asked(`v1/responses/${encodeURIComponent(id)}`).catch(() => null);
    if (body?.metadata?.page_chat !== chat) return;
    const input = await asked(`v1/responses/${id}/input_items?limit=100`).catch(() => ({ data: [] }));
    const files = input.data.flatMap(attachedTo).filter((file) => !staying.includes(file));
    await ask(`v1/responses/${id}`, { method: "DELETE" }).catch(() => null);
    for (const file of files) await ask(`v1/files/${file}`, { method: "DELETE" }).catch(() => null);
    id = body.previous_response_id;
  }
}

/** The ids of the files that go with an item of a response's input. */
export const attachedTo = ({ content }) =>
  (Array.isArray(content) ? content : []).map(({ file_id: id }) => id).filter(Boolean);
