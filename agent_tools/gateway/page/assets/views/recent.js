// The newest responses of this key, whichever client asked for them, with their tokens and times.

import { $, ago, button, of } from "../elements.js";
import { asked } from "../gateway.js";

const COLUMNS = [
  ...[["when", ""], ["question", ""], ["model", ""], ["status", ""], ["calls", ".number"]],
  ...[["tokens in", ".number"], ["tokens out", ".number"], ["time", ".number"], ["", ""]],
];

export class Recent {
  #open;

  /** `open(id)` shows a response as a conversation. */
  constructor(open) {
    this.#open = open;
    $("refresh").addEventListener("click", () => this.refresh());
  }

  async refresh() {
    try {
      const { responses, now } = await asked("page/responses");
      this.#show(responses, now);
    } catch (error) {
      $("recent").replaceChildren(of("p.failure", { role: "alert" }, error.message));
    }
  }

  #show(responses, now) {
    if (!responses.length) {
      $("recent").replaceChildren(of("p.dim", {}, "None yet. Those of all clients with your key will stand here."));
      return;
    }
    const head = of("tr", {}, ...COLUMNS.map(([name, kind]) => (name ? of(`th${kind}`, { scope: "col" }, name) : of("td"))));
    const rows = grouped(responses).map((each) => this.#row(each, now));
    const table = of("table", {}, of("thead", {}, head), of("tbody", {}, ...rows));
    $("recent").replaceChildren(of("div.table", { tabIndex: 0 }, table));
  }

  #row(each, now) {
    const number = (count) => (count == null ? "–" : count.toLocaleString("en"));
    const open = button(".quiet", "Open", () => this.#open(each.id), { ariaLabel: `Open ${each.id}` });
    const row = of("tr", {},
      of("td", { title: new Date(each.created_at * 1000).toLocaleString() }, ago(now - each.created_at)),
      of(`td.asked-first${each.isEarlier ? ".earlier" : ""}`, { title: each.question ?? "" }, each.question || "–"),
      of("td.model", {}, each.model ?? "–"),
      of("td", {}, of(`span.status.status-${each.status}`, {}, each.status.replace("_", " "))),
      of("td.number", {}, number(each.calls)),
      of("td.number", {}, number(each.input_tokens)),
      of("td.number", {}, number(each.output_tokens)),
      of("td.number", {}, each.seconds == null ? "–" : `${each.seconds} s`),
      of("td", {}, open));
    row.title = each.is_read ? each.id : `${each.id}: too large to be read for this list`;
    return row;
  }
}

/** The responses with those of one conversation together, at the place of its newest, newest first. */
function grouped(responses) {
  const byId = new Map(responses.map((each) => [each.id, each]));
  const isLater = new Set(responses.map(({ previous }) => previous).filter(Boolean));
  const rows = [];
  for (const newest of responses.filter(({ id }) => !isLater.has(id))) {
    rows.push(newest);
    for (let next = byId.get(newest.previous); next && byId.delete(next.id); next = byId.get(next.previous)) {
      rows.push({ ...next, isEarlier: true });
    }
  }
  return rows;
}
