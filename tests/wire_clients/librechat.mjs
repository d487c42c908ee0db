// LibreChat's own executors, as its agents use them: code, bash, and tools that code calls.
import assert from "node:assert";
import { readFileSync } from "node:fs";
import * as agents from "@librechat/agents";

const baseUrl = process.env.LIBRECHAT_CODE_BASEURL;
const authHeaders = { "X-API-Key": process.env.GATEWAY_KEY };

async function main() {
  const code = agents.createCodeExecutionTool({ baseUrl, authHeaders });
  const call = (tool, args, extra) => tool.invoke({ type: "tool_call", id: "1", name: tool.name, args, ...extra });
  const first = await call(code, { lang: "py", code: "x = 41\nopen('a.txt', 'w').write('a')\nprint('hello')" });
  assert.match(first.content, /hello/);
  assert.equal(first.artifact.files[0].name, "a.txt");
  const files = first.artifact.files.map((file) => ({ ...file, resource_id: "1" }));
  const again = await call(code, { lang: "py", code: "print(x + 1, open('/mnt/data/a.txt').read())" }, { _injected_files: files });
  assert.match(again.content, /42 a/);
  assert.equal(again.artifact.session_id, first.artifact.session_id);
  const bash = agents.createBashExecutionTool({ baseUrl, authHeaders });
  const shell = await call(bash, { command: "cat a.txt && exit 3" }, { _injected_files: files });
  assert.match(shell.content, /stdout:\na/);
  const weather = { name: "get_weather", invoke: async (input) => ({ t: input.city.length }) };
  const tool = agents.createProgrammaticToolCallingTool({ baseUrl, authHeaders });
  const given = { toolMap: new Map([[weather.name, weather]]), toolDefs: [{ name: weather.name, allowed_callers: ["code_execution"] }] };
  const asked = "a, b = await asyncio.gather(get_weather(city='SF'), get_weather(city='Rome'))\nprint(a['t'] + b['t'])";
  const told = await call(tool, { code: asked, tool_manifest: ["get_weather"] }, given);
  assert.match(told.content, /6/);
  const plain = await call(tool, { code: "print('plain')", tool_manifest: [] }, given);
  assert.match(plain.content, /plain/);
  const listed = await agents.fetchSessionFiles?.(baseUrl, first.artifact.session_id, { kind: "user", id: "1" }, authHeaders);
  if (listed) assert.equal(listed[0].name, "a.txt");
  const { version } = JSON.parse(readFileSync(new URL("node_modules/@librechat/agents/package.json", import.meta.url)));
  console.log(`@librechat/agents ${version}: works, with code, bash and tools`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
