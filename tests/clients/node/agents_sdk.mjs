// @openai/agents: two turns, the second of which resends the items of the first; run, or streamed.
import { Agent, Runner, codeInterpreterTool } from "@openai/agents";

const streamed = process.argv[2] === "streamed";
const tools = [codeInterpreterTool({ container: { type: "auto" }, includeOutputs: true })];
const agent = new Agent({ name: "Analyst", model: "m", tools });
const runner = new Runner({ tracingDisabled: true });

async function turn(input) {
  if (!streamed) return { result: await runner.run(agent, input), kinds: [] };
  const result = await runner.run(agent, input, { stream: true });
  const kinds = [];
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "model") kinds.push(event.data.event.type);
    else if (event.type === "run_item_stream_event") kinds.push(event.name);
  }
  await result.completed;
  return { result, kinds };
}

const first = await turn("Go.");
const second = await turn([...first.result.history, { role: "user", content: "And now?" }]);
const shown = ({ result, kinds }) => ({
  kinds,
  text: result.finalOutput,
  items: result.newItems.map((item) => item.rawItem),
  tokens: result.state.usage.totalTokens,
});
console.log(JSON.stringify({ first: shown(first), second: shown(second) }));
