// A figure that code sent as data. Where a library for it is here, it is drawn in a frame of its own, without an origin;
// its picture is shown until then, and if that fails.

import { of } from "../elements.js";

const KINDS = { plotly: "plotly", vega: "vega", vegalite: "vega" }; // the library for each kind of a figure
const place = { libraries: {} };
const texts = new Map(); // of a library's files, once they are asked for

/**
 * Says where figures are drawn from: `libraries`, the files of each; `textOf(file)`, which returns the text of one;
 * `open(frame)`, which loads the document `frame/figure.html`; and whether scripts are added `inline`.
 */
export const drawFrom = (found) => Object.assign(place, found);

/** Returns the texts of a library's files, which are asked for once. */
function textsOf(name) {
  if (!texts.has(name)) {
    texts.set(name, Promise.all(place.libraries[name].map((file) => place.textOf(file))));
    texts.get(name).catch(() => texts.delete(name)); // the next figure asks again
  }
  return texts.get(name);
}

/** Returns a figure that can be drawn from data, `{ kind, data }`; `still` is shown until it is, and if it cannot be. */
export function interactiveFigure({ kind, data }, still) {
  if (!Object.hasOwn(KINDS, kind) || !Object.hasOwn(place.libraries, KINDS[kind])) return still;
  const frame = of("iframe", { title: "Interactive figure", loading: "lazy" });
  frame.sandbox = "allow-scripts";
  place.open(frame);
  const box = of("div.interactive", {}, still, frame);
  const listen = ({ source, data: { state, height } }) => {
    if (source !== frame.contentWindow) {
      if (!box.isConnected) removeEventListener("message", listen);
    } else if (state === "ready") {
      const send = (library) => source.postMessage({ kind, figure: data, library, inline: place.inline }, "*");
      textsOf(KINDS[kind]).then(send, () => frame.remove());
    } else if (state === "drawn") {
      frame.style.height = `${Math.min(1200, Math.max(160, Number(height) || 450))}px`;
      box.dataset.state = "drawn";
    } else frame.remove();
  };
  addEventListener("message", listen);
  return box;
}
