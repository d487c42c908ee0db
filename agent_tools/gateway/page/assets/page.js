// The page: its views, the key that it asks for, and what all of them share.

import { $ } from "./elements.js";
import { asked } from "./gateway.js";
import { Attachments } from "./panels/attachments.js";
import { Files } from "./panels/files.js";
import { Sandboxes } from "./panels/sandboxes.js";
import { Place } from "./place.js";
import { prepareFigures } from "./text/figure.js";
import { Chat } from "./views/chat.js";
import { Recent } from "./views/recent.js";
import { Snippets } from "./views/snippets.js";
import { Trial } from "./views/trial.js";

const VIEWS = ["chat", "code", "responses", "connect"];
const EVERY = 3000; // milliseconds between two looks at the gateway's state

const place = new Place();
const attachments = new Attachments();
const chat = new Chat(place, attachments);
const files = new Files(place);
const sandboxes = new Sandboxes(place);
const snippets = new Snippets();
const recent = new Recent((id) => {
  location.hash = "chat";
  chat.open(id);
});
new Trial(place);
prepareFigures();

function showView() {
  const view = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.ariaCurrent = "page";
    else link.ariaCurrent = null;
  }
  if (document.body.classList.contains("locked")) return;
  if (view === "responses") recent.refresh();
  if (view === "connect") snippets.show();
}

/** Reads what the gateway has, once it may be asked. */
async function enter() {
  const [state] = await Promise.all([sandboxes.refresh(), chat.readModels(), files.refresh()]);
  snippets.show(state ?? {});
  showView();
  await chat.resume();
}

async function unlock(event) {
  event.preventDefault();
  try {
    await asked("page/state");
  } catch (error) {
    $("refusal").textContent = error.status === 401 ? "The gateway does not know this key." : error.message;
    return;
  }
  $("refusal").textContent = "";
  document.body.classList.remove("locked");
  $("prompt").focus();
  enter();
}

/** Files that are dropped anywhere go where they are needed: with the next question, or into the container. */
function prepareDrop() {
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", event.dataTransfer.types.includes("Files"));
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const dropped = [...event.dataTransfer.files];
    if (!dropped.length || document.body.classList.contains("locked")) return;
    if (document.body.dataset.view === "chat" && !event.target.closest("aside")) attachments.add(dropped);
    else files.bring(dropped);
  });
}

$("unlock").dataset.needed = document.body.classList.contains("locked") ? "yes" : "no";
$("unlock").addEventListener("submit", unlock);
addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", () => document.hidden || sandboxes.refresh());
setInterval(() => document.hidden || sandboxes.refresh(), EVERY);
prepareDrop();
showView();
if (!document.body.classList.contains("locked")) enter();
