// Claude Code, the real program, before an upstream that has Anthropic's Messages API.
import { execFileSync } from "node:child_process";

const { CLIENT_FOLDER: home, OPENAI_BASE_URL: url, OPENAI_API_KEY: key } = process.env;
const quiet = { CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1", DISABLE_TELEMETRY: "1" };
const ours = { ANTHROPIC_BASE_URL: url.replace(/\/v1$/, ""), ANTHROPIC_API_KEY: key, ANTHROPIC_MODEL: "m", ANTHROPIC_SMALL_FAST_MODEL: "m" };
const environment = { ...process.env, ...quiet, ...ours, HOME: home, IS_SANDBOX: "1" };
const said = execFileSync(`${process.env.CLIENT_BIN}/claude`, ["-p", "Go."], { cwd: home, env: environment, stdio: ["ignore", "pipe", 2], timeout: 120_000 });
console.log(JSON.stringify({ answers: [String(said).trim()] }));
