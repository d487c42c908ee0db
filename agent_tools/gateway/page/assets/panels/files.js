// The files of the container: what code wrote and what was brought, each a click away; new ones by button or drop.

import { $, button, of, size } from "../elements.js";
import { ask, download } from "../gateway.js";
import { filesOf, nameOf } from "../place.js";

const ANOTHER = "The container of before is gone, with its files and variables: this is a new one.";

export class Files {
  #place;
  #asked = 0; // so that only the newest answer is shown

  constructor(place) {
    this.#place = place;
    place.onChange(() => this.refresh());
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh()); // it may have expired
    $("upload").addEventListener("click", () => $("chosen-files").click());
    $("chosen-files").addEventListener("change", (event) => this.bring([...event.target.files]));
  }

  async refresh() {
    const number = ++this.#asked;
    const { container } = this.#place;
    try {
      const { data, has_more: hasMore } = container ? await filesOf(container) : { data: [] };
      if (number !== this.#asked) return;
      $("files").replaceChildren(...data.map((file) => this.#row(container, file)));
      if (hasMore) $("files").append(of("li.dim", {}, "The newest 100 are shown."));
    } catch (error) {
      if (number === this.#asked && error.isGone) $("files").replaceChildren(); // it expired, or was deleted
      else if (number === this.#asked) this.#say(error.message);
    }
  }

  /** Puts files into the container. */
  async bring(files) {
    let said = "";
    for (const file of files) {
      this.#say(`Bringing ${file.name} …`);
      try {
        if (await this.#put(file)) said = ANOTHER;
        this.#say(said);
      } catch (error) {
        this.#say(`${file.name}: ${error.message}`);
        break;
      }
    }
    $("chosen-files").value = "";
    this.refresh();
  }

  /** Puts a file into the container; returns true if that is a new one, since the one before is gone. */
  async #put(file) {
    const send = async () => ask(`v1/containers/${await this.#place.needed()}/files`, { form: formOf(file) });
    try {
      await send();
      return false;
    } catch (error) {
      if (!error.isGone) throw error;
      this.#place.use(null);
      await send();
      return true;
    }
  }

  #row(container, file) {
    const name = nameOf(file);
    const get = button(".link.name", name, () => this.#do(() => download(container, file.id, name.split("/").pop())), {
      title: `Download ${name}`,
    });
    const drop = button(".drop", "×", () => this.#do(() => this.#delete(container, file)), {
      title: `Delete ${name}`,
      ariaLabel: `Delete ${name}`,
    });
    return of("li", {}, get, of("span.facts", {}, size(file.bytes)), drop);
  }

  async #delete(container, file) {
    await ask(`v1/containers/${container}/files/${encodeURIComponent(file.id)}`, { method: "DELETE" });
    this.refresh();
  }

  async #do(act) {
    try {
      await act();
      this.#say("");
    } catch (error) {
      this.#say(error.message);
    }
  }

  #say(text) {
    $("files-state").textContent = text;
  }
}

export function formOf(file, fields = {}) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file);
  return form;
}
