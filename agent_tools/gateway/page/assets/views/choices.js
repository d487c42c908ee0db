// What a question is asked with: the model, whether code may run, the system prompt and the temperature.

import { $, button, of } from "../elements.js";
import { asked } from "../gateway.js";
import { keep, keepField, kept } from "../kept.js";

export class Choices {
  #changed;
  #problem = ""; // of the upstream, as the gateway's state has it

  /** `changed()` is called when there is a model to ask, or none any more. */
  constructor(changed) {
    this.#changed = changed;
    $("model").addEventListener("change", () => keep("model", this.model));
    $("settings").addEventListener("click", () => this.#open($("settings-panel").hidden));
    for (const name of ["instructions", "temperature"]) {
      keepField($(name), name);
      $(name).addEventListener("input", () => this.#mark());
    }
    this.#mark();
  }

  get model() {
    return $("model").value;
  }

  get runsCode() {
    return $("with-code").checked;
  }

  /** The fields of a request that are set. */
  get fields() {
    const [instructions, temperature] = [$("instructions").value.trim(), $("temperature").value];
    const isSet = temperature !== "" && $("temperature").checkValidity();
    return { ...(instructions && { instructions }), ...(isSet && { temperature: Number(temperature) }) };
  }

  /** Reads the upstream's models. */
  async readModels() {
    try {
      const { data } = await asked("v1/models");
      const names = data.map(({ id }) => String(id));
      $("model").replaceChildren(...names.map((name) => of("option", { value: name }, name)));
      if (names.includes(kept("model"))) $("model").value = kept("model");
      this.say(names.length ? "" : "The upstream names no models.");
    } catch (error) {
      this.say(`No model to talk to: ${this.#problem ? `the upstream ${this.#problem}` : error.message}`);
    }
  }

  /** Learns from the gateway's state what is wrong with the upstream; once nothing is, its models are read. */
  async upstream(problem) {
    if (problem === this.#problem) return;
    this.#problem = problem;
    await this.readModels();
  }

  /** Says something above the question; "" says nothing. */
  say(text, canRetry = true) {
    const retry = text && canRetry ? [button(".link", "Try again", () => this.readModels())] : [];
    $("notice").replaceChildren(text, " ", ...retry);
    $("notice").hidden = !text;
    $("model").hidden = !$("model").options.length;
    this.#changed();
  }

  #open(isOpen) {
    $("settings-panel").hidden = !isOpen;
    $("settings").ariaExpanded = String(isOpen);
    if (isOpen) $("instructions").focus();
  }

  /** Marks the button if something is set that the panel hides. */
  #mark() {
    $("settings").classList.toggle("is-set", Object.keys(this.fields).length > 0);
  }
}
