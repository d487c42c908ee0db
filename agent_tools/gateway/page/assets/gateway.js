// Asking the gateway. The key is in its field and nowhere else, unless the user has the tab keep it (page.js).

import { $ } from "./elements.js";

/** An answer that is no success, in the gateway's words; status 0: there was none. */
export class Refusal extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** What was asked for has expired, or was deleted. */
  get isGone() {
    return this.status === 404 || this.code === "container_expired";
  }
}

/** Asks, with JSON or a form as the body, and returns the response. Throws a Refusal, or an AbortError of `signal`. */
export async function ask(path, { json, form, method, signal } = {}) {
  const headers = $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};
  if (json) headers["Content-Type"] = "application/json";
  const body = json ? JSON.stringify(json) : form;
  const response = await answered(path, { method: method ?? (body ? "POST" : "GET"), headers, body, signal });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Asks, and returns the JSON of the answer. */
export const asked = async (path, options) => (await ask(path, options)).json();

async function answered(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The gateway does not answer");
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null); // a proxy's own page is no JSON
  const error = body?.error;
  return new Refusal(response.status, error?.message ?? `The gateway answered ${response.status}`, error?.code);
}

/** Yields the events of a stream. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let pending = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (pending + value).split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      const data = block.slice(block.startsWith("event: ") ? block.indexOf("\n") + 1 : 0);
      if (data.startsWith("data: {")) yield JSON.parse(data.slice(6));
    }
  }
}

/** Gives a file of a container to the browser, which saves it. */
export async function download(container, id, name) {
  save(await contentOf(container, id), name);
}

export const contentOf = async (container, id) =>
  (await ask(`v1/containers/${container}/files/${encodeURIComponent(id)}/content`)).blob();

export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // until the browser has begun to read it
}
