// Code that is tried by hand, in the same container as the conversation; its output comes while it runs.

import { $, button, of, size } from "../elements.js";
import { ask, asked, eventsOf } from "../gateway.js";
import { keep, kept } from "../kept.js";
import { Output } from "../text/output.js";
import { Editor } from "./editor.js";

const EXAMPLES = {
  Figure: `import time

for step in range(1, 4):
    print(f"step {step} of 3", flush=True)
    time.sleep(0.3)

x = np.linspace(0, 4 * np.pi, 400)
plt.figure(figsize=(9, 4.5))
for n in range(1, 6):
    plt.plot(x, np.sin(x + n / 3) / n, label=f"n = {n}")
plt.legend()
plt.show()`,
  Table: `shop = pd.DataFrame({
    "day": pd.date_range("2024-03-01", periods=6).strftime("%a %d"),
    "sold": [12, 18, 9, 22, 31, 27],
})
shop["share"] = (shop["sold"] / shop["sold"].sum()).round(3)
shop.to_csv("shop.csv", index=False)
shop`,
  Error: `def mean(numbers):
    return sum(numbers) / len(numbers)

mean([])`,
  Endless: `import itertools, time

for n in itertools.count():  # until you press Stop
    print(f"\\rstill running: {n}", end="", flush=True)
    time.sleep(0.1)`,
};
const ENDINGS = { done: "Done in", failed: "Failed after", stopped: "Stopped after", refused: "Not run" };
const GONE = "The container of the earlier runs is gone: this is a new one, without their variables and files.";

export class Trial {
  #place;
  #editor;
  #output = new Output($("output"));
  #running = null; // the AbortController of the run that goes on

  constructor(place) {
    this.#place = place;
    const changed = (code) => keep("code", code);
    this.#editor = new Editor($("code"), $("coloured"), { run: () => this.run(), changed });
    const typed = this.#editor.code; // before the page was ready
    if (typed) changed(typed);
    this.#editor.code = typed || kept("code", EXAMPLES.Figure);
    for (const [name, code] of Object.entries(EXAMPLES)) {
      $("examples").append(button(".example", name, () => changed((this.#editor.code = code))));
    }
    $("run").addEventListener("click", () => this.run());
    $("stop").addEventListener("click", () => this.stop());
  }

  async run() {
    if (this.#running) return;
    this.#running = new AbortController();
    this.#output.clear();
    $("run").disabled = true;
    $("stop").disabled = false;
    say("running", "Running");
    const started = performance.now();
    const tick = () => ($("clock").textContent = `${((performance.now() - started) / 1000).toFixed(1)} s`);
    const clock = setInterval(tick, 100);
    try {
      const json = { code: this.#editor.code, container: this.#place.container };
      await this.#follow(await ask("page/run", { json, signal: this.#running.signal }));
    } catch (error) {
      if (error.name === "AbortError") say("stopped", "Stopped before it began");
      else say("failed", error.message);
    }
    clearInterval(clock);
    $("clock").textContent = "";
    $("run").disabled = false;
    $("stop").disabled = true;
    this.#running = null;
    this.#place.changed();
  }

  async #follow(response) {
    let hasEnded = false;
    for await (const event of eventsOf(response)) {
      if (event.kind === "started") this.#settleIn(event.container);
      else if (event.kind !== "done") this.#output.show(event);
      else this.#finish(event);
      hasEnded = event.kind === "done";
    }
    if (!hasEnded) throw new Error("The gateway hung up before the code had ended");
  }

  #settleIn(id) {
    const { container } = this.#place;
    if (container && container !== id) this.#output.show({ kind: "note", text: GONE });
    if (container !== id) this.#place.use(id);
    else this.#place.changed();
    $("where").textContent = "Variables and files stay for the next run, and for the chat.";
  }

  #finish({ ending, seconds, files }) {
    const { container } = this.#place;
    const rows = files.map(({ name, size: bytes }) => {
      const open = () => this.#place.open(container, `/mnt/data/${name}`);
      const get = button(".link", name, open, { title: `Download ${name}` });
      return of("li", {}, get, of("span.facts", {}, size(bytes)));
    });
    if (rows.length) this.#output.add(filesBlock(rows));
    say(ending, ending === "refused" ? ENDINGS[ending] : `${ENDINGS[ending]} ${seconds.toFixed(2)} s`);
  }

  /** Ends the code that runs; its stream then tells how it ended. */
  async stop() {
    if ($("stop").disabled) return;
    $("stop").disabled = true;
    const json = { container: this.#place.container };
    const stopped = json.container && (await asked("page/stop", { json }).catch(() => null))?.stopped;
    if (!stopped) this.#running?.abort(); // it has not begun, and is not waited for any more
  }
}

function filesBlock(rows) {
  const block = of("div.written", {}, of("b", {}, "files written"), of("ul", {}, ...rows));
  block.dataset.kind = "files";
  return block;
}

function say(ending, text) {
  $("state").dataset.ending = ending;
  $("state").textContent = text;
}
