import { Output } from "./output.js";

const EXAMPLES = {
  Figure: `import time

for step in range(1, 4):
    print(f"step {step} of 3", flush=True)
    time.sleep(0.3)

x = np.linspace(0, 4 * np.pi, 400)
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
const STATES = { busy: "running code", idle: "idle", none: "no sandbox" };
const ENDINGS = { done: "Done in", failed: "Failed after", stopped: "Stopped after", refused: "Not run" };

const $ = (id) => document.getElementById(id);
const output = new Output($("output"));
let container = null; // where the page's code runs, once it has run
let running = null; // the AbortController of the run that goes on

// -- asking the gateway -----------------------------------------------------------------------------------------------

function ask(path, body, options = {}) {
  const headers = $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};
  if (!body) return fetch(path, { headers, ...options });
  headers["Content-Type"] = "application/json";
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let pending = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (pending + value).split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: {")) yield JSON.parse(block.slice(6));
  }
}

// -- running code -----------------------------------------------------------------------------------------------------

function say(ending, text) {
  $("state").dataset.ending = ending;
  $("state").textContent = text;
}

async function run() {
  if (running) return;
  running = new AbortController();
  output.clear();
  $("run").disabled = true;
  $("stop").disabled = false;
  say("running", "Running");
  const started = performance.now();
  const clock = setInterval(() => ($("clock").textContent = `${((performance.now() - started) / 1000).toFixed(1)} s`), 100);
  try {
    const response = await ask("page/run", { code: $("code").value, container }, { signal: running.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    await follow(response);
  } catch (error) {
    if (error.name === "AbortError") say("stopped", "Stopped before it began");
    else say("failed", error.name === "TypeError" ? "The gateway does not answer" : error.message); // what fetch throws
  }
  clearInterval(clock);
  $("clock").textContent = "";
  $("run").disabled = false;
  $("stop").disabled = true;
  running = null;
  refresh();
}

async function follow(response) {
  let hasEnded = false;
  for await (const event of eventsOf(response)) {
    if (event.kind === "started") settleIn(event.container);
    else if (event.kind !== "done") output.show(event);
    else finish(event);
    hasEnded = event.kind === "done";
  }
  if (!hasEnded) throw new Error("The gateway hung up before the code had ended");
}

function settleIn(id) {
  if (container && container !== id) {
    output.show({ kind: "note", text: "The container of the earlier runs is gone: this is a new one, without their variables and files." });
  }
  container = id;
  $("where").textContent = "Variables and files stay for the next run.";
  refresh();
}

function finish({ ending, seconds, files }) {
  const written = files.map(({ name, size }) => `${name}  ${size.toLocaleString("en")} bytes`);
  if (written.length) output.show({ kind: "files", text: written.join("\n") });
  say(ending, ending === "refused" ? ENDINGS[ending] : `${ENDINGS[ending]} ${seconds.toFixed(2)} s`);
}

async function stop() {
  $("stop").disabled = true;
  const response = container && (await ask("page/stop", { container }));
  const stopped = response?.ok && (await response.json()).stopped;
  if (!stopped) running?.abort(); // it has not begun: nobody waits for it any more
}

// -- what runs here ---------------------------------------------------------------------------------------------------

async function refresh() {
  if (document.body.classList.contains("locked")) return;
  const response = await ask("page/state").catch(() => null);
  $("health").textContent = response?.ok ? "online" : "no answer";
  $("health").dataset.ok = Boolean(response?.ok);
  if (response?.ok) showState(await response.json());
}

function showState(state) {
  $("version").textContent = state.version;
  $("sandboxes").textContent = state.sandboxes;
  $("max-sandboxes").textContent = state.max_kept_sandboxes;
  $("room").max = state.max_kept_sandboxes;
  $("room").value = state.sandboxes;
  $("under-way").textContent = state.under_way;
  $("waiting").textContent = state.waiting;
  $("timeout").textContent = `${state.timeout} s`;
  showContainers(state.containers);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function showContainers(containers) {
  const list = $("containers");
  const ids = containers.map(({ id }) => id);
  if (list.dataset.ids !== ids.join()) list.replaceChildren(...ids.map(item)); // else the focus stays where it is
  list.dataset.ids = ids.join();
  containers.forEach(({ id, name, memory, sandbox, unused }, index) => {
    const [title, , facts] = list.children[index].children;
    list.children[index].className = sandbox;
    title.textContent = id === container ? "this page" : name || "unnamed";
    facts.textContent = `${STATES[sandbox]} · ${memory} · ${ago(unused)}`;
  });
}

function item(id) {
  const drop = element("button", "drop", "×");
  drop.title = drop.ariaLabel = `Delete container ${id}`;
  drop.addEventListener("click", () => remove(id));
  const made = element("li", "", "");
  made.append(element("b", "", ""), element("code", "", `${id.slice(0, 13)}…`), element("span", "facts", ""), drop);
  return made;
}

function ago(seconds) {
  if (seconds < 10) return "just used";
  return seconds < 60 ? `${Math.floor(seconds)} s ago` : `${Math.floor(seconds / 60)} min ago`;
}

async function remove(id) {
  await ask(`v1/containers/${id}`, null, { method: "DELETE" });
  refresh();
}

// -- the page itself --------------------------------------------------------------------------------------------------

async function unlock(event) {
  event.preventDefault();
  const response = await ask("page/state");
  $("refusal").textContent = response.ok ? "" : "The gateway does not know this key.";
  if (!response.ok) return;
  document.body.classList.remove("locked");
  $("code").focus();
  refresh();
}

function typed(event) {
  if (event.key !== "Enter") return;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    run();
  } else if (!event.isComposing && !event.shiftKey) {
    const { value, selectionStart } = event.target;
    const line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
    const indent = /^ */.exec(line)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
    if (!indent) return;
    event.preventDefault();
    document.execCommand("insertText", false, `\n${indent}`); // the only way that leaves undo as it is
  }
}

for (const [name, code] of Object.entries(EXAMPLES)) {
  const button = element("button", "example", name);
  button.addEventListener("click", () => ($("code").value = code));
  $("examples").append(button);
}
$("code").value = EXAMPLES.Figure;
$("base-url").textContent = new URL("v1", document.baseURI).href;
$("which-key").textContent = document.body.className ? "yours" : "any";
$("run").addEventListener("click", run);
$("stop").addEventListener("click", stop);
$("unlock").addEventListener("submit", unlock);
$("code").addEventListener("keydown", typed);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
setInterval(() => document.hidden || refresh(), 3000);
refresh();
