// A figure that code drew: as large as its place, larger on a click, and saved by a button; or, where a library for it is
// here and the code sent its data, drawn in a frame of its own, with the picture until then and if that fails.

import { ask, contentOf, save } from "../gateway.js";
import { $, button, of } from "../elements.js";

const DATA = /^data:image\/(png|jpeg);base64,[A-Za-z0-9+/=]*$/;
const CONTENT = /\/v1\/containers\/([\w-]+)\/files\/([\w-]+)\/content$/;
const LIBRARIES = { plotly: "plotly", vega: "vega", vegalite: "vega" }; // by the kind of a figure
const libraries = new Map(); // the files of those that the gateway has; their texts once they are asked for

/** Says which libraries the gateway has, with the names of their files. */
export const haveLibraries = (found) => Object.entries(found).forEach((each) => libraries.set(...each));

/** Returns the texts of a library's files, which are asked for once. */
function textsOf(name) {
  const found = libraries.get(name);
  if (found instanceof Promise) return found;
  const asking = Promise.all(found.map(async (file) => (await ask(`page/library/${file}`)).text()));
  libraries.set(name, asking);
  asking.catch(() => libraries.set(name, found)); // the next figure asks again
  return asking;
}

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

/** Returns a figure that can be drawn from data, `{ kind, data }`; `still` is shown until it is, and if it cannot be. */
export function interactiveFigure({ kind, data }, still) {
  if (!Object.hasOwn(LIBRARIES, kind) || !libraries.has(LIBRARIES[kind])) return still;
  const frame = of("iframe", { title: "Interactive figure", loading: "lazy", src: "page/frame/figure.html" });
  frame.sandbox = "allow-scripts";
  const box = of("div.interactive", {}, still, frame);
  const listen = ({ source, data: { state, height } }) => {
    if (source !== frame.contentWindow) {
      if (!box.isConnected) removeEventListener("message", listen);
    } else if (state === "ready") {
      const send = (library) => source.postMessage({ kind, figure: data, library }, "*");
      textsOf(LIBRARIES[kind]).then(send, () => frame.remove());
    } else if (state === "drawn") {
      frame.style.height = `${Math.min(1200, Math.max(160, Number(height) || 450))}px`;
      box.dataset.state = "drawn";
    } else frame.remove();
  };
  addEventListener("message", listen);
  return box;
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
