// The page that a client of the protocol shows beside an answer of run_python, run_command or wait.
//
// It talks with its parent alone, by the messages of MCP Apps (2026-01-26). It asks the server for the outputs of the run
// by the tool get_outputs; a client that passes no calls on leaves it with the content of the answer.
// Whatever code said becomes a text node; a picture is a checked data URL; and a figure is drawn in a frame without an
// origin, since a page of this kind may call the server's tools.

import { drawFrom } from "./text/interactive.js";
import { $, button, of, size } from "./elements.js";
import { Output } from "./text/output.js";

const PICTURE = /^data:image\/(?:png|jpeg);base64,[A-Za-z0-9+/]+={0,2}$/;
const VARIABLE = /^--[a-z0-9-]{1,60}$/;
const WAIT_SECONDS = 10;
const output = new Output($("outputs"));
const run = { code: "", container: "" };
const waiting = new Map(); // requests without an answer, by their numbers
let host = {}; // its capabilities
let requests = 0;

const post = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
const request = (method, params) => new Promise((resolve, reject) => {
  waiting.set(++requests, { resolve, reject });
  post({ id: requests, method, params });
});

addEventListener("message", ({ source, data }) => {
  if (source !== parent || data?.jsonrpc !== "2.0") return;
  if (data.method) return receive(data);
  const { resolve, reject } = waiting.get(data.id) ?? {};
  waiting.delete(data.id);
  if (data.error) reject?.(new Error(String(data.error.message)));
  else resolve?.(data.result ?? {});
});

function receive({ id, method, params = {} }) {
  if (method === "ui/notifications/tool-input") showCode(params.arguments?.code ?? params.arguments?.command);
  else if (method === "ui/notifications/tool-result") showResult(params).catch(({ message }) => say(message));
  else if (method === "ui/notifications/tool-cancelled") say("The call was cancelled.");
  else if (method === "ui/notifications/host-context-changed") adapt(params);
  if (id === undefined) return;
  const known = method === "ping" || method === "ui/resource-teardown";
  post({ id, ...(known ? { result: {} } : { error: { code: -32601, message: "Method not found" } }) });
}

/** Takes on the client's theme, colours and fonts. */
function adapt({ theme, styles }) {
  const { style } = document.documentElement;
  if (theme === "light" || theme === "dark") style.colorScheme = theme;
  for (const [name, value] of Object.entries(styles?.variables ?? {})) {
    if (VARIABLE.test(name) && typeof value === "string") style.setProperty(name, value);
  }
}

const say = (text) => ($("state").textContent = text);

function showCode(code) {
  run.code = typeof code === "string" ? code : "";
  $("code").hidden = !run.code;
  $("code").lastElementChild.textContent = run.code;
  say("Running …");
}

/** Shows an answer of a tool: by its content, then by the outputs of the run. */
async function showResult({ content = [] }) {
  const named = content.find(({ type }) => type === "text")?.text.match(/^container: (cntr_[0-9a-f]+)/);
  run.container = named?.[1] ?? "";
  output.clear();
  for (const { type, text, mimeType, data } of content) {
    if (type === "text") output.show({ kind: "logs", text: text.replace(/^container: .*\n+/, "") });
    if (type === "image") output.show({ kind: "image", url: `data:${mimeType};base64,${data}` });
  }
  const links = content.filter(({ type }) => type === "resource_link");
  showFiles(links.map(({ name, ...link }) => ({ ...link, path: name })));
  say("");
  if (host.serverTools && run.container) await follow(0).catch(() => {}); // a client may pass on no calls of a page
}

/** Shows the outputs of the run as soon as there are any; with seconds, waits for its end. */
async function follow(seconds) {
  const { container, code } = run;
  const { structuredContent: found } = await request("tools/call", { name: "get_outputs", arguments: { container, code, seconds } });
  if (!found || found.status === "unknown") return;
  if (found.status === "running") {
    say(`Running: ${found.progress}`);
    document.querySelector("footer").replaceChildren(of("div.row", {}, waiter(), stopper()));
    if (seconds) await follow(seconds);
    return;
  }
  drawFrom({ libraries: host.serverResources ? found.libraries : {}, textOf: (file) => fileText(found.base + file), open, inline: true });
  output.clear();
  for (const each of found.outputs) output.show(each);
  showFiles(found.files);
  say(found.outputs.length ? "" : "Finished without output.");

  async function open(frame) {
    frame.srcdoc = await fileText(`${found.base}frame/figure.html`).catch(() => "");
  }
}

const fileText = async (uri) => (await request("resources/read", { uri })).contents[0].text;

const waiter = () => button("", "Wait for the rest", ({ target }) => {
  target.disabled = true;
  follow(WAIT_SECONDS).catch(({ message }) => say(message));
});

/** A button that asks once more: a restart ends what runs, and variables are gone. */
function stopper() {
  const stop = button("", "Stop", () => {
    if (stop.dataset.asked) {
      stop.disabled = true;
      request("tools/call", { name: "restart", arguments: { container: run.container } })
        .then(() => follow(WAIT_SECONDS))
        .catch(({ message }) => say(message));
    }
    stop.dataset.asked = "yes";
    stop.textContent = "Stop, and lose all variables";
  });
  return stop;
}

function showFiles(files) {
  const rows = files.map((file) => {
    const save = host.serverResources && String(file.uri).startsWith("sandbox://");
    const name = save ? button("", file.path, () => saved(file).catch(({ message }) => say(message)), { title: "Save" }) : file.path;
    return of("div.row", {}, name, of("span.dim", {}, size(Number(file.size) || 0)));
  });
  document.querySelector("footer").replaceChildren(...rows);
}

async function saved({ uri, path }) {
  const { contents: [resource] } = await request("resources/read", { uri });
  if (host.downloadFile) return request("ui/download-file", { contents: [{ type: "resource", resource }] });
  const data = resource.blob === undefined ? `charset=utf-8,${encodeURIComponent(resource.text)}` : `base64,${resource.blob}`;
  of("a", { href: `data:application/octet-stream;${data}`, download: path.split("/").pop() }).click();
}

/** A figure for its URL, which has to be a picture as data. */
function figure(url) {
  if (!PICTURE.test(url)) return of("p.dim", {}, "A figure that cannot be shown.");
  return of("img", { src: url, alt: "A figure that the code drew" });
}

new ResizeObserver(() => {
  const { width, height } = document.documentElement.getBoundingClientRect();
  post({ method: "ui/notifications/size-changed", params: { width: Math.ceil(width), height: Math.ceil(height) } });
}).observe(document.documentElement);

const appCapabilities = { availableDisplayModes: ["inline", "fullscreen"] };
const appInfo = { name: "agent-tools", version: "1" };
request("ui/initialize", { protocolVersion: "2026-01-26", appInfo, appCapabilities }).then(({ hostCapabilities, hostContext }) => {
  host = hostCapabilities ?? {};
  adapt(hostContext ?? {});
  post({ method: "ui/notifications/initialized", params: {} });
});
