// A figure that code drew: as large as its place, larger on a click, and saved by a button.

import { ask, contentOf, save } from "../gateway.js";
import { $, button, of } from "../elements.js";
import { drawFrom } from "./interactive.js";

const DATA = /^data:image\/(png|jpeg);base64,[A-Za-z0-9+/=]*$/;
const CONTENT = /\/v1\/containers\/([\w-]+)\/files\/([\w-]+)\/content$/;

/** Says which libraries the gateway has, with the names of their files. */
export const haveLibraries = (found) => drawFrom({
  libraries: found,
  textOf: async (file) => (await ask(`page/library/${file}`)).text(),
  open: (frame) => (frame.src = "page/frame/figure.html"),
});

/** Returns a figure's element for its URL: data, or a file of a container, for which the gateway is asked. */
export function figure(url) {
  const image = of("img", { alt: "a figure that the code drew" });
  const large = button(".figure", image, () => enlarge(image.src), { title: "Show it larger" });
  if (DATA.test(url)) image.src = url;
  else {
    fetched(url).then((data) => {
      if (data) image.src = data;
      else large.replaceWith(of("p.dim", {}, `a figure at ${url}`));
    });
  }
  return large;
}

/** A file's content as a data URL, since the page shows no others; null for any other address. */
async function fetched(url) {
  const found = CONTENT.exec(url);
  const blob = found && (await contentOf(found[1], found[2]).catch(() => null));
  return blob && new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.replace(/^data:[^;]*/, "data:image/png"));
    reader.readAsDataURL(blob);
  });
}

function enlarge(source) {
  $("large-image").src = source;
  $("large").showModal();
}

export function prepareFigures() {
  $("large").addEventListener("click", (event) => event.target.closest("button") || $("large").close());
  $("large-close").addEventListener("click", () => $("large").close());
  $("large-save").addEventListener("click", () => {
    const [head, data] = $("large-image").src.split(",");
    const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    save(new Blob([bytes]), head.includes("jpeg") ? "figure.jpg" : "figure.png");
  });
}
