// What runs here: the gateway's load, and the caller's containers, to work in or to delete.

import { $, ago, button, of } from "../elements.js";
import { ask, asked, Refusal } from "../gateway.js";

const STATES = { busy: "running code", idle: "idle", none: "no sandbox" };

export class Sandboxes {
  #place;
  #titleFor;
  #seen;

  /** `titleFor(container)` is the title of its conversation, or null; `seen(state)` is called with each state. */
  constructor(place, { titleFor, seen }) {
    this.#place = place;
    this.#titleFor = titleFor;
    this.#seen = seen;
    place.onChange(() => this.refresh());
  }

  /** Asks for the gateway's state and shows it. Returns it; null if there is no answer. */
  async refresh() {
    if (document.body.classList.contains("locked")) return null;
    const state = await asked("page/state").catch(() => null);
    const problem = state?.upstream_problem;
    $("health").textContent = !state ? "no answer" : problem ? "no upstream" : "online";
    $("health").title = problem ? `The upstream ${problem}` : "";
    $("health").dataset.ok = !state ? "no" : problem ? "half" : "yes";
    if (state) this.#show(state);
    if (state) this.#seen(state);
    return state;
  }

  #show(state) {
    $("version").textContent = state.version;
    $("sandboxes").textContent = state.sandboxes;
    $("max-sandboxes").textContent = state.max_kept_sandboxes;
    $("room").max = state.max_kept_sandboxes;
    $("room").value = state.sandboxes;
    $("under-way").textContent = state.under_way;
    $("waiting").textContent = state.waiting;
    $("timeout").textContent = `${state.timeout} s`;
    this.#list(state.containers);
  }

  #list(containers) {
    const list = $("containers");
    const ids = containers.map(({ id }) => id);
    const isSame = list.dataset.ids === ids.join(); // then the focus stays where it is
    if (!isSame) list.replaceChildren(...ids.map((id) => this.#row(id)));
    list.dataset.ids = ids.join();
    containers.forEach(({ id, name, memory, sandbox, unused }, index) => {
      const [title, , facts] = list.children[index].children;
      const isHere = id === this.#place.container;
      list.children[index].className = sandbox;
      title.textContent = isHere ? "this page" : this.#titleFor(id) || name || "unnamed";
      title.disabled = isHere;
      facts.textContent = `${STATES[sandbox]} · ${memory} · ${ago(unused)}`;
    });
  }

  #row(id) {
    const use = button(".link.name", "", () => this.#place.use(id), { title: "Work in this container" });
    const label = `Delete container ${id}`;
    const drop = button(".drop", "×", () => this.#remove(id), { title: label, ariaLabel: label });
    return of("li", {}, use, of("code", {}, `${id.slice(0, 13)}…`), of("span.facts"), drop);
  }

  async #remove(id) {
    await ask(`v1/containers/${id}`, { method: "DELETE" }).catch((error) => {
      if (!(error instanceof Refusal)) throw error; // it is gone already, or the gateway is, which is shown anyway
    });
    this.refresh();
  }
}
