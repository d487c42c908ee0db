// Codex CLI, the real program: its own command is called by the model, runs where Codex runs, and its output goes back.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";

const folder = process.env.CLIENT_FOLDER;
const home = `${folder}/home`;
mkdirSync(home, { recursive: true });
writeFileSync(`${home}/config.toml`, `model = "${process.env.OPENAI_MODEL}"
model_provider = "agent-tools"

[model_providers.agent-tools]
name = "agent-tools"
base_url = "${process.env.OPENAI_BASE_URL}"
wire_api = "responses"
`);
const args = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-o", `${folder}/last.txt`, "Go."];
const environment = { ...process.env, CODEX_HOME: home };
execFileSync(`${process.env.CLIENT_BIN}/codex`, args, { cwd: folder, env: environment, stdio: ["ignore", 2, 2] });
const { readFileSync } = await import("node:fs");
console.log(JSON.stringify({ answers: [readFileSync(`${folder}/last.txt`, "utf8").trim()] }));
