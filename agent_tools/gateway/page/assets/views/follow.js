// Keeps the end of the conversation in view while it grows, until the user scrolls up; at the end it follows again.
//
// Only a scroll upwards ends the following: the page itself only scrolls down, and what grows late (a picture, a figure in
// its frame) is seen by an observer and not by the code that added it.

import { $ } from "../elements.js";

const NEAR = 48; // pixels from the end that count as the end

/** The pixels of the conversation's end that lie below the place for a question. */
const hidden = () => $("transcript").getBoundingClientRect().bottom - $("ask").getBoundingClientRect().top;

export class Follow {
  #isPinned = true;
  #last = 0;
  #isShown = () => document.body.dataset.view === "chat";

  /** `isLive()` says if an answer is under way; else opening something in the conversation ends the following. */
  constructor(isLive) {
    addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const observer = new ResizeObserver(() => this.#isPinned && this.#isShown() && this.#down());
    observer.observe($("transcript"));
    observer.observe($("ask"));
    for (const kind of ["pointerdown", "keydown"]) {
      $("transcript").addEventListener(kind, () => isLive() || (this.#isPinned = false));
    }
  }

  /** Goes to the end and stays there. */
  toEnd() {
    this.#isPinned = true;
    if (this.#isShown()) this.#down();
  }

  /** Shows the conversation where it was left. */
  back() {
    if (this.#isPinned) this.#down();
    else scrollTo(0, this.#last);
  }

  #down() {
    const isNew = $("transcript").querySelector(".empty"); // a new chat is shown from its top
    scrollBy(0, isNew ? -scrollY : Math.max(0, hidden()));
    this.#last = scrollY;
  }

  #scrolled() {
    if (!this.#isShown()) return;
    if (hidden() < NEAR) this.#isPinned = true;
    else if (scrollY < this.#last) this.#isPinned = false;
    this.#last = scrollY;
  }
}
