// Vercel's AI SDK: two turns, the first streamed, the second with all messages of the first; code and a function in one turn.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI(); // OPENAI_BASE_URL, OPENAI_API_KEY
const tools = { code_interpreter: openai.tools.codeInterpreter({}) };
const asked = { model: openai.responses("m"), maxRetries: 0 };

async function turns() {
  const stream = streamText({ ...asked, tools, prompt: "Go." });
  const parts = [];
  for await (const part of stream.fullStream) if (!part.type.includes("step")) parts.push(part);
  const { messages } = await stream.response;
  const again = { role: "user", content: "And now?" };
  const second = await generateText({ ...asked, tools, messages: [{ role: "user", content: "Go." }, ...messages, again] });
  return { parts, second: { content: second.content, usage: second.usage }, warnings: second.warnings ?? [] };
}

async function steps() {
  const get_weather = tool({
    description: "The weather in a place",
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => `Rain in ${place}.`,
  });
  const both = { ...tools, get_weather };
  const { text, steps } = await generateText({ ...asked, tools: both, prompt: "Go.", stopWhen: isStepCount(5) });
  return { text, steps: steps.map((step) => step.content.map((part) => part.type)) };
}

const report = { turns, steps };
console.log(JSON.stringify(await report[process.argv[2]]()));
