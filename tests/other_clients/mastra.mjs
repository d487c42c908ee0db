// Mastra: an agent with the AI SDK's model and its code interpreter; the second turn sends all messages again.
import { createOpenAI } from "@ai-sdk/openai";
import { Agent } from "@mastra/core/agent";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
const openai = createOpenAI({ baseURL, apiKey });
const agent = new Agent({ id: "analyst", name: "Analyst", instructions: "Work it out.", model: openai(model), tools: { code: openai.tools.codeInterpreter({}) } });
const first = await agent.generate("Go.");
const messages = [{ role: "user", content: "Go." }, ...first.response.messages, { role: "user", content: "And again?" }];
const second = await agent.generate(messages);
console.log(JSON.stringify({ answers: [first.text, second.text] }));
