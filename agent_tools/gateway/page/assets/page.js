// The page: its views, the key that it asks for, and what all of them share.

import { $ } from "./elements.js";
import { asked } from "./gateway.js";
import { keep, kept } from "./kept.js";
import { Attachments } from "./panels/attachments.js";
import { Files } from "./panels/files.js";
import { Sandboxes } from "./panels/sandboxes.js";
import { Place } from "./place.js";
import { canSignIn, comeBack, signIn } from "./sign_on.js";
import { haveLibraries, prepareFigures } from "./text/figure.js";
import { Chat } from "./views/chat.js";
import { Operator } from "./views/operator.js";
import { Recent } from "./views/recent.js";
import { Snippets } from "./views/snippets.js";
import { Trial } from "./views/trial.js";

const VIEWS = ["chat", "code", "responses", "connect", "operator"];
const SOON = 3_000; // milliseconds between two looks at the gateway's state while something runs
const LATER = 10_000; // likewise, while nothing does

const place = new Place();
const attachments = new Attachments();
const chat = new Chat(place, attachments);
const files = new Files(place);
const sandboxes = new Sandboxes(place, { titleFor: chat.chats.titleFor, seen: (state) => chat.choices.upstream(state.upstream_problem) });
const snippets = new Snippets();
const recent = new Recent((id) => {
  location.hash = "chat";
  chat.open(id);
});
const operator = new Operator();
const trial = new Trial(place);
prepareFigures();

function showView() {
  const view = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  const isOther = document.body.dataset.view !== view;
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.ariaCurrent = "page";
    else link.ariaCurrent = null;
  }
  if (isOther && view === "chat") chat.back();
  else if (isOther) scrollTo(0, 0);
  if (document.body.classList.contains("locked")) return;
  if (view === "responses") recent.refresh();
  if (view === "connect") snippets.show();
  if (view === "operator") operator.open();
}

/** Reads what the gateway has, once it may be asked. */
async function enter() {
  const [state] = await Promise.all([sandboxes.refresh(), chat.choices.readModels(), files.refresh(), chat.chats.refresh()]);
  haveLibraries(state?.libraries ?? {});
  snippets.show(state ?? {});
  $("operator-link").hidden = !state?.operator;
  showView();
  await chat.resume();
}

async function unlock(event) {
  event?.preventDefault();
  try {
    await asked("page/state");
  } catch (error) {
    if (error.status === 401) keep("key", null);
    $("refusal").textContent = error.status === 401 ? "The gateway does not know this key." : error.message;
    return;
  }
  $("refusal").textContent = "";
  keep("key", $("remember").checked ? $("key").value : null);
  document.body.classList.remove("locked");
  $("prompt").focus();
  enter();
}

/** Opens the page with the token of a user who comes back from the identity provider, or with the key that is kept. */
async function open() {
  $("sign-in").hidden = !canSignIn;
  $("sign-in").addEventListener("click", signIn);
  try {
    const token = await comeBack();
    if (token) $("key").value = token;
    else if (kept("key")) {
      $("key").value = kept("key"); // the user wanted it to be there after a reload
      $("remember").checked = true;
    }
  } catch (error) {
    $("refusal").textContent = error.message;
  }
  if ($("key").value) unlock();
}

/** Escape stops what runs in the view that is shown, wherever the focus is, but for what has an Escape of its own. */
function escaped(event) {
  if (event.key !== "Escape" || $("large").open || event.target.closest?.(".editing")) return;
  if (document.body.dataset.view === "code") trial.stop();
  else if (document.body.dataset.view === "chat") chat.stop();
}

/** Looks at the gateway's state, again and again: seldom while nothing runs. */
async function watch() {
  const state = document.hidden ? null : await sandboxes.refresh();
  const isBusy = !state || state.under_way || state.containers.some(({ sandbox }) => sandbox === "busy");
  if (document.body.dataset.view === "operator" && state?.operator) operator.refresh();
  setTimeout(watch, isBusy ? SOON : LATER);
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
for (const [name, event] of [["ask", "submit"], ["run", "click"]]) {
  $(name).addEventListener(event, () => setTimeout(() => sandboxes.refresh(), 1_000)); // what begins is shown as running
}
document.addEventListener("visibilitychange", () => document.hidden || sandboxes.refresh());
addEventListener("keydown", escaped);
setTimeout(watch, SOON);
prepareDrop();
showView();
if (!document.body.classList.contains("locked")) enter();
else open();
