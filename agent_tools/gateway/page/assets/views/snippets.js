// What to copy into a client: this gateway's address, a model of its upstream, and where the key goes.

import { $, button, of } from "../elements.js";
import { keep, kept } from "../kept.js";
import { codeBlock } from "../text/prose.js";

const QUESTION = "Which day of the week was 29 February 2000? Use Python.";
const TOOL = '{"type": "code_interpreter", "container": {"type": "auto"}}';

const NEEDED = { refuse: "; the gateway needs: agent-tools serve --set unknown_tools=ignore" };
const COMMAND = `# this gateway has no MCP at /mcp; a server on your own machine:
agent-tools mcp config claude-code  # or claude-desktop, cursor, vscode, codex, windsurf, lm-studio`;

/** By client: the language and the text, for the facts of a gateway. */
const SNIPPETS = {
  curl: ({ base, key, model }) => ["sh", `curl ${base}/responses \\
  -H "Authorization: Bearer ${key}" -H "Content-Type: application/json" \\
  -d '{"model": ${JSON.stringify(model)}, "input": "${QUESTION}",
       "tools": [${TOOL}],
       "include": ["code_interpreter_call.outputs"]}'`],
  Python: ({ base, key, model }) => ["python", `import openai

client = openai.OpenAI(base_url="${base}", api_key="${key}")
response = client.responses.create(
    model=${JSON.stringify(model)},
    input="${QUESTION}",
    tools=[${TOOL}],
    include=["code_interpreter_call.outputs"],
)
print(response.output_text)`],
  JavaScript: ({ base, key, model }) => ["javascript", `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${base}", apiKey: "${key}" });
const response = await client.responses.create({
  model: ${JSON.stringify(model)},
  input: "${QUESTION}",
  tools: [{ type: "code_interpreter", container: { type: "auto" } }],
  include: ["code_interpreter_call.outputs"],
});
console.log(response.output_text);`],
  Codex: ({ base, model, isLocked, unknownTools }) => ["toml", `# ~/.codex/config.toml${NEEDED[unknownTools] ?? ""}
model = ${JSON.stringify(model)}
model_provider = "agent-tools"

[model_providers.agent-tools]
name = "agent-tools"
base_url = "${base}"
wire_api = "responses"${isLocked ? '\nenv_key = "AGENT_TOOLS_KEY"' : ""}`],
  MCP: ({ mcp, key, isLocked }) => {
    if (!mcp) return ["sh", COMMAND];
    const headers = isLocked ? { headers: { Authorization: `Bearer ${key}` } } : {};
    return ["json", JSON.stringify({ mcpServers: { python: { type: "http", url: mcp, ...headers } } }, null, 2)];
  },
};

export class Snippets {
  #state = null;

  /** Shows the snippets for what the gateway said of itself, and the model that is chosen; nothing before it has. */
  show(state) {
    this.#state = state ?? this.#state;
    if (!this.#state) return;
    const base = new URL("v1", document.baseURI).href;
    const isLocked = $("unlock").dataset.needed === "yes";
    const mcp = this.#state.mcp ? new URL("mcp", document.baseURI).href : null;
    const [key, model] = [isLocked ? "YOUR_KEY" : "none", $("model").value || "the-model"];
    const facts = { base, mcp, isLocked, key, model, unknownTools: this.#state.unknown_tools };
    $("base-url").textContent = base;
    $("which-key").textContent = isLocked ? "yours" : "any";
    $("clients").replaceChildren(...Object.keys(SNIPPETS).map((name) => this.#tab(name)));
    const chosen = Object.hasOwn(SNIPPETS, kept("client", "")) ? kept("client") : "curl";
    const [language, text] = SNIPPETS[chosen](facts);
    $("snippet").replaceChildren(codeBlock(text, language));
  }

  #tab(name) {
    const tab = button(".example", name, () => {
      keep("client", name);
      this.show();
      [...$("clients").children].find((each) => each.textContent === name).focus();
    });
    tab.ariaPressed = String(kept("client", "curl") === name);
    return tab;
  }
}
