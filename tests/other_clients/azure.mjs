// AzureOpenAI of openai for Node, whose paths begin with /openai.
import { AzureOpenAI } from "openai";

const { OPENAI_BASE_URL: url, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
delete process.env.OPENAI_BASE_URL; // it takes no endpoint beside that
const client = new AzureOpenAI({ endpoint: url.replace(/\/v1$/, ""), apiKey, apiVersion: "2025-04-01-preview", maxRetries: 0 });
const tools = [{ type: "code_interpreter", container: { type: "auto" } }];
const first = await client.responses.create({ model, input: "Go.", tools });
const second = await client.responses.create({ model, input: "And again?", tools, previous_response_id: first.id });
console.log(JSON.stringify({ answers: [first.output_text, second.output_text] }));
