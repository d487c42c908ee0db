// Files that go with the next question: sent to /v1/files at once, and named in the question by their ids.

import { $, button, of, size } from "../elements.js";
import { ask, asked } from "../gateway.js";
import { keep, kept } from "../kept.js";
import { formOf } from "./files.js";

export class Attachments {
  #files = kept("attachments", []); // { id, name, bytes }
  #underWay = 0;

  constructor() {
    $("attach").addEventListener("click", () => $("attached-files").click());
    $("attached-files").addEventListener("change", (event) => this.add([...event.target.files]));
    $("prompt").addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.add([...event.clipboardData.files]);
    });
    this.#show();
  }

  get ids() {
    return this.#files.map(({ id }) => id);
  }

  get isBusy() {
    return this.#underWay > 0;
  }

  /** Returns the files, which go with the question now. */
  take() {
    const taken = this.#files;
    this.#set([]);
    return taken;
  }

  async add(files) {
    for (const file of files) {
      this.#underWay += 1;
      this.#show(`Bringing ${file.name} …`);
      try {
        const { id } = await asked("v1/files", { form: formOf(file, { purpose: "user_data" }) });
        this.#set([...this.#files, { id, name: file.name, bytes: file.size }]);
      } catch (error) {
        this.#show(`${file.name}: ${error.message}`);
        break;
      } finally {
        this.#underWay -= 1;
      }
    }
    $("attached-files").value = "";
  }

  #set(files) {
    this.#files = files;
    keep("attachments", files);
    this.#show();
  }

  #show(text = "") {
    const chips = this.#files.map(({ id, name, bytes }) => {
      const label = `Leave out ${name}`;
      const drop = button(".drop", "×", () => this.#remove(id), { title: label, ariaLabel: label });
      return of("span.chip", {}, `${name} · ${size(bytes)}`, drop);
    });
    $("attachments").replaceChildren(...chips, ...(text ? [of("span.dim", { role: "status" }, text)] : []));
  }

  async #remove(id) {
    this.#set(this.#files.filter((file) => file.id !== id));
    await ask(`v1/files/${id}`, { method: "DELETE" }).catch(() => null); // it goes with the gateway's retention
  }
}
