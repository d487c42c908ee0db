// opencode, the real program, with a provider of its own configuration.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";

const { CLIENT_FOLDER: home, OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
const project = `${home}/project`; // it refuses to work in a home directory
mkdirSync(project);
const provider = { ours: { npm: "@ai-sdk/openai-compatible", name: "ours", options: { baseURL, apiKey }, models: { [model]: { name: model } } } };
writeFileSync(`${project}/opencode.json`, JSON.stringify({ $schema: "https://opencode.ai/config.json", provider }));
writeFileSync(`${home}/models.json`, "{}"); // else it asks a server of its own for all models there are
const models = { OPENCODE_MODELS_PATH: `${home}/models.json`, OPENCODE_DISABLE_MODELS_FETCH: "1" };
const environment = { ...process.env, ...models, HOME: home, PWD: project, XDG_DATA_HOME: `${home}/data` };
const args = ["run", "--model", `ours/${model}`, "Go."];
const said = execFileSync(`${process.env.CLIENT_BIN}/opencode`, args, { cwd: project, env: environment, stdio: ["ignore", "pipe", 2] });
console.log(JSON.stringify({ answers: [/The end: [\w ]+/.exec(String(said))?.[0].trim() ?? String(said)] }));
