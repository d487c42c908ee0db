// LlamaIndex.TS: openaiResponses, whose built-in tools go out as they are; the second turn names the response of the first.
import { openaiResponses } from "@llamaindex/openai";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
const tools = [{ type: "code_interpreter", container: { type: "auto" } }];
const llm = openaiResponses({ model, apiKey, baseURL, builtInTools: tools, store: true, trackPreviousResponses: true, maxRetries: 0 });

async function ask(content) {
  let text = "";
  for await (const { delta, raw } of await llm.chat({ messages: [{ role: "user", content }], stream: true })) {
    if (raw.type === "response.output_text.delta") text += delta; // it repeats the last one with every other event
  }
  return text;
}

console.log(JSON.stringify({ answers: [await ask("Go."), await ask("And again?")] }));
