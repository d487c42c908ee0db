// LangChain.js in its newest form of messages, which it sends again in full: code comes back as a function's call.
import { ChatOpenAI } from "@langchain/openai";
import { HumanMessage } from "@langchain/core/messages";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
const tools = [{ type: "code_interpreter", container: { type: "auto" } }];
const chat = new ChatOpenAI({ model, apiKey, configuration: { baseURL }, useResponsesApi: true, outputVersion: "v1", maxRetries: 0 }).bindTools(tools);
const messages = [new HumanMessage("Go.")];
messages.push(await chat.invoke(messages), new HumanMessage("And again?"));
const second = await chat.invoke(messages);
console.log(JSON.stringify({ answers: [messages[1].text, second.text] }));
