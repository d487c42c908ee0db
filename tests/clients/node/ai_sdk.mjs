// Vercel's AI SDK: two turns, the first streamed, the second with all messages of the first.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: "any" });
const asked = { model: openai.responses("m"), tools: { code_interpreter: openai.tools.codeInterpreter({}) }, maxRetries: 0 };

const stream = streamText({ ...asked, prompt: "Go." });
const parts = [];
for await (const part of stream.fullStream) parts.push(part);
const { messages } = await stream.response;
const again = { role: "user", content: "And now?" };
const second = await generateText({ ...asked, messages: [{ role: "user", content: "Go." }, ...messages, again] });

console.log(
  JSON.stringify({
    parts: parts.filter((part) => !part.type.includes("step")),
    second: { text: second.text, content: second.content, usage: second.usage },
    warnings: second.warnings ?? [],
  }),
);
