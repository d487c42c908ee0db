"use strict";
// What the code says is only ever set as text; pictures are data URLs the gateway has checked.
const $ = (id) => document.getElementById(id);
let container = null;
let running = null;

const headers = () => ($("key").value ? { Authorization: `Bearer ${$("key").value}` } : {});

function show(event) {
  const { kind, text, url } = event;
  if (url) {
    const image = document.createElement("img");
    image.src = url;
    image.alt = "a figure that the code drew";
    $("output").append(image);
    return;
  }
  const last = $("output").lastElementChild;
  if (last && last.className === kind && kind.startsWith("std")) {
    last.textContent += text;
    return;
  }
  const block = document.createElement("pre");
  block.className = kind;
  block.textContent = text;
  $("output").append(block);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (pending + value).split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: {")) yield JSON.parse(block.slice(6));
    }
  }
}

async function run() {
  running = new AbortController();
  $("output").replaceChildren();
  $("run").disabled = true;
  $("stop").disabled = false;
  $("state").textContent = "running";
  try {
    const response = await fetch("/page/run", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ code: $("code").value, container }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of eventsOf(response)) {
      if (event.kind === "started") container = event.container;
      else if (event.kind === "done") $("state").textContent = `done in ${event.seconds.toFixed(2)} s`;
      else show(event);
    }
  } catch (error) {
    $("state").textContent = error.name === "AbortError" ? "stopped" : error.message;
  }
  $("run").disabled = false;
  $("stop").disabled = true;
  refresh();
  setTimeout(refresh, 1000); // stopped code takes a moment to end
}

function row(cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const field = document.createElement("td");
    field.textContent = cell;
    line.append(field);
  }
  return line;
}

async function refresh() {
  const response = await fetch("/page/state", { headers: headers() });
  $("key-label").hidden = response.status !== 401 && !$("key").value;
  if (!response.ok) return;
  const state = await response.json();
  $("facts").replaceChildren();
  for (const [name, value] of Object.entries(state.facts)) {
    const [term, fact] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    fact.textContent = value;
    $("facts").append(term, fact);
  }
  $("containers").replaceChildren(
    ...state.containers.map((each) =>
      row([`${each.id.slice(0, 17)}…`, each.name, each.memory, each.sandbox, new Date(each.used * 1000).toLocaleTimeString()])
    )
  );
}

$("run").addEventListener("click", run);
$("stop").addEventListener("click", () => running && running.abort());
$("forget").addEventListener("click", () => {
  container = null;
  $("state").textContent = "the next run starts in a new container";
});
$("key").addEventListener("change", refresh);
$("code").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
});
refresh();
setInterval(refresh, 5000);
