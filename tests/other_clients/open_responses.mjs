// The AI SDK's provider for Open Responses, which has no built-in tools.
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText } from "ai";

const { OPENAI_BASE_URL: url, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
const ours = createOpenResponses({ name: "ours", url: `${url}/responses`, apiKey });
const { text } = await generateText({ model: ours(model), prompt: "Go.", maxRetries: 0 });
console.log(JSON.stringify({ answers: [text] }));
