// The operator's view: what all keys run, to stop it; keys, to limit and revoke them; use by user, and the last failures.

import { $, ago, button, of, size } from "../elements.js";
import { asked } from "../gateway.js";

const RUNNING = [["container", ""], ["whose", ""], ["since", ""], ["used", ""], ["memory", ".number"], ["files", ".number"], ["", ""]];
const FAILURES = [["when", ""], ["whose", ""], ["what", ""], ["reason", ""], ["times", ".number"]];
const KEYS = [["name", ""], ["kind", ""], ["made", ""], ["containers", ".number"], ["a minute", ".number"], ["volumes", ""], ["", ""]];
const USAGE = [["key", ""], ["user", ""], ["runs", ".number"], ["time", ".number"], ["bytes", ".number"], ["tokens", ".number"]];
const STATES = { busy: "running", idle: "idle", starting: "starting" };
const KINDS = { timed_out: "time limit", died: "sandbox ended", refused: "code refused" };
const NUMBERS = new Intl.NumberFormat("en");

export class Operator {
  #rows = new Map(); // of containers, by id, so that the focus stays where it is

  constructor() {
    $("refresh-keys").addEventListener("click", () => this.#readKeys());
    $("find-key").addEventListener("change", () => this.#readKeys());
    $("running").append(table("Running now", RUNNING));
  }

  /** Shows what there is now. */
  open() {
    this.refresh();
    this.#readKeys();
  }

  /** Shows anew what runs, and what has failed. */
  async refresh() {
    const state = await this.#asked("page/operator");
    if (!state) return;
    const rows = state.containers.map((each) => this.#container(each));
    const body = $("running").querySelector("tbody");
    const isSame = rows.length === body.children.length && rows.every((row, index) => row === body.children[index]);
    if (!isSame) body.replaceChildren(...rows);
    this.#rows = new Map(state.containers.map(({ id }, index) => [id, rows[index]]));
    $("running").dataset.empty = rows.length ? "" : "Nothing runs.";
    const failures = state.failures.map((each) => of("tr", {},
      of("td", { title: new Date(each.at * 1000).toLocaleString() }, ago(state.now - each.at)),
      whose(each),
      of("td", {}, KINDS[each.kind] ?? each.kind),
      of("td.words", { title: each.container }, each.reason || "–"),
      of("td.number", {}, NUMBERS.format(each.count))));
    $("failures").replaceChildren(failures.length ? table("Last failures", FAILURES, failures) : of("p.dim", {}, "None since this gateway was started."));
  }

  #container(each) {
    const row = this.#rows.get(each.id) ?? of("tr", { className: "container" }, ...RUNNING.map(() => of("td")));
    const [name, by, since, used, memory, files, act] = row.children;
    if (!act.firstChild) act.append(this.#stop(each.id, each.elsewhere));
    const shown = of("td", {}, of("b", {}, each.name || "unnamed"), of("span.facts", {}, `${each.origin || "client"} · ${each.id.slice(0, 13)}…`));
    name.replaceChildren(...shown.childNodes);
    [name.className, name.title] = ["words", each.id];
    by.replaceChildren(...whose(each).childNodes);
    since.textContent = ago(each.age);
    used.textContent = each.elsewhere ? each.elsewhere : `${STATES[each.sandbox]}, ${ago(each.used)}`;
    [memory.className, memory.textContent] = ["number", each.memory];
    [files.className, files.textContent] = ["number", size(each.bytes)];
    return row;
  }

  #stop(id, elsewhere) {
    if (elsewhere) return of("span.facts", {}, "another gateway");
    return sure("Stop", `Stop container ${id}`, "Variables are lost.", () => this.#change("stop", { container: id }));
  }

  async #readKeys() {
    const found = await this.#asked(`page/operator/keys?find=${encodeURIComponent($("find-key").value)}`);
    if (!found) return;
    const keys = found.keys.map((each) => this.#key(each));
    $("keys").replaceChildren(keys.length ? table("Keys", KEYS, keys) : of("p.dim", {}, "No key of this name: agent-tools keys add NAME makes one."), leftOut(found.keys_left_out));
    $("usage-title").textContent = `Used in ${found.month} (UTC)`;
    const used = found.usage.map((each) => of("tr", {},
      of("td", {}, each.key_name),
      of("td.words", { title: each.owner }, each.user_name || "–"),
      of("td.number", {}, NUMBERS.format(each.runs)),
      of("td.number", {}, `${NUMBERS.format(Math.round(each.seconds))} s`),
      of("td.number", {}, size(each.bytes_in + each.bytes_out)),
      of("td.number", {}, NUMBERS.format(each.input_tokens + each.output_tokens))));
    $("usage").replaceChildren(used.length ? table("Usage", USAGE, used) : of("p.dim", {}, "Nothing yet."), leftOut(found.usage_left_out));
  }

  #key(each) {
    const kind = [each.operator && "operator", each.for_users && "for users", each.group != null && `group ${each.group}`];
    const limit = (value) => of("td.number", {}, value == null ? "–" : NUMBERS.format(value));
    const date = new Date(each.made * 1000);
    const revoke = () => sure("Revoke", `Revoke ${each.name}`, "It cannot be undone.", () => this.#change("revoke", { key: each.name }));
    const set = () => button(".quiet", "Limit", () => this.#limit(each), { ariaLabel: `Limit ${each.name}` });
    return of(`tr${each.revoked ? ".revoked" : ""}`, {},
      of("td", {}, of("b", {}, each.name)),
      of("td.words", {}, kind.filter(Boolean).join(", ") || "key"),
      of("td", { title: date.toLocaleString() }, date.toLocaleDateString("sv")),
      limit(each.max_containers),
      limit(each.max_requests_per_minute),
      of("td.words", {}, each.volumes == null ? "all" : each.volumes || "none"),
      of("td.acts", {}, ...(each.revoked ? ["revoked"] : [set(), revoke()])));
  }

  #limit(key) {
    const dialog = $("limits");
    $("limits-title").textContent = `Limits of ${key.name}`;
    $("max-containers").value = key.max_containers ?? "";
    $("max-requests").value = key.max_requests_per_minute ?? "";
    dialog.returnValue = "";
    const number = (id) => ($(id).value === "" ? null : Number($(id).value));
    dialog.onclose = () => {
      if (dialog.returnValue !== "set") return;
      this.#change("limit", { key: key.name, max_containers: number("max-containers"), max_requests_per_minute: number("max-requests") });
    };
    dialog.showModal();
  }

  async #change(what, json) {
    if (await this.#asked(`page/operator/${what}`, { json })) this.open();
  }

  /** Asks, and returns the JSON of the answer; null, with the reason shown, if that failed. */
  async #asked(path, options) {
    const problem = $("operator-problem");
    try {
      const found = await asked(path, options);
      problem.hidden = true;
      return found;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      return null;
    }
  }
}

function table(label, columns, rows = []) {
  const head = of("tr", {}, ...columns.map(([name, kind]) => (name ? of(`th${kind}`, { scope: "col" }, name) : of("td"))));
  return of("div.table", { tabIndex: 0, role: "group", ariaLabel: label }, of("table", {}, of("thead", {}, head), of("tbody", {}, ...rows)));
}

const whose = ({ key, user }) => of("td", {}, of("span", {}, key || "–"), user ? of("span.facts", {}, user) : null);

const leftOut = (count) => (count ? of("p.dim", {}, `${NUMBERS.format(count)} more: find them by a part of the name.`) : "");

/** A button that asks once more before it acts. */
function sure(label, name, warning, act) {
  const place = of("span.acts");
  const first = button(".quiet", label, () => {
    const yes = button(".danger", label, act, { title: warning, ariaLabel: `${name}: yes. ${warning}` });
    place.replaceChildren(yes, button(".quiet", "Keep", back));
    yes.focus();
  }, { ariaLabel: name });
  const back = () => place.replaceChildren(first) ?? first.focus();
  place.append(first);
  return place;
}
