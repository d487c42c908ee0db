// The container that this page works in: the chat, the code and the files share it.

import { $ } from "./elements.js";
import { asked, download, Refusal } from "./gateway.js";
import { keep, kept } from "./kept.js";

export class Place {
  #listeners = [];
  container = kept("container");
  isChosen = kept("is-chosen", false); // by the person, and not by the conversation so far

  onChange(listener) {
    this.#listeners.push(listener);
  }

  /** Works in a container from now on; in none until one is needed. */
  use(container, { isChosen = Boolean(container) } = {}) {
    this.container = container;
    this.isChosen = isChosen;
    keep("container", container);
    keep("is-chosen", isChosen);
    this.changed();
  }

  /** Something happened in the container. */
  changed() {
    for (const listener of this.#listeners) listener();
  }

  /** Returns the container's id; makes one first if there is none. */
  async needed() {
    if (!this.container) this.use((await asked("v1/containers", { json: { name: "page" } })).id);
    return this.container;
  }

  /** Returns true if the container is no more, and then works in none. */
  async isGone() {
    const state = await asked("page/state").catch(() => null);
    const isGone = Boolean(state && !state.containers.some(({ id }) => id === this.container));
    if (isGone) this.use(null);
    return isGone;
  }

  /** Gives a file of a container, by its path, to the browser, or says why not. */
  open = async (container, path) => {
    try {
      const file = await found(container, path);
      await download(container, file.id, nameOf(file).split("/").pop());
      $("files-state").textContent = "";
    } catch (error) {
      $("files-state").textContent = `${path}: ${error.message}`;
    }
  };
}

export const filesOf = (container, after = "") => asked(`v1/containers/${container}/files?limit=100&after=${after}`);

/** Looks for a file by its path, on all pages of the list. */
async function found(container, path) {
  for (let after = ""; ; ) {
    const { data, has_more: hasMore, last_id: last } = await filesOf(container, after);
    const file = data.find((each) => each.path === path);
    if (file) return file;
    if (!hasMore) throw new Refusal(404, "there is no such file");
    after = last;
  }
}

/** The name of a file in the working directory. */
export const nameOf = ({ path }) => path.replace(/^\/mnt\/data\//, "");
