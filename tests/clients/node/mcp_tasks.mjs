// The client for tasks that the protocol publishes, before the MCP server at MCP_URL: a call that becomes a task, and one
// that does not. Each answer has to fit the published schema.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
import * as schemas from "@modelcontextprotocol/ext-tasks/core/v2";

const url = process.env.MCP_URL;
const clientInfo = { name: "test", version: "1" };
const clientCapabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };
const protocolVersion = "2026-07-28";
const statuses = [];

async function rawDispatch(request) {
  const body = { jsonrpc: "2.0", id: statuses.length + 1, ...request };
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": protocolVersion,
    "mcp-method": body.method,
    "mcp-name": body.params.taskId ?? body.params.name,
  };
  const text = await (await fetch(url, { method: "POST", headers, body: JSON.stringify(body) })).text();
  const events = text.split("\n").filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
  const answer = events.find(({ id }) => id === body.id) ?? JSON.parse(text);
  check(body.method, answer.result);
  return answer;
}

function check(method, result) {
  if (method === "tools/call" && result?.resultType === "task") schemas.CreateTaskResultV2Schema.parse(result);
  if (method === "tasks/get") schemas.GetTaskResultV2Schema.parse(result);
  if (method === "tasks/cancel") schemas.CancelTaskResultV2Schema.parse(result);
  if (method === "tasks/update") schemas.UpdateTaskResultV2Schema.parse(result);
  statuses.push(result?.status ?? method);
}

const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: "auto" } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const framing = { protocolVersion, clientInfo, clientCapabilities };
const session = createTaskSessionFromClient(client, { endpointId: "test", rawDispatch, v2RequestFraming: framing });

async function result(code) {
  const execution = await session.callTool("run_python", { code });
  const { outcome } = await execution.settle();
  return resultFromTaskOutcome(outcome);
}

const quick = await result("2 + 2");
const late = await result("import time; time.sleep(2); print('late')");
const failed = await result("import time; time.sleep(2); 1/0");

const meta = { "io.modelcontextprotocol/protocolVersion": protocolVersion, "io.modelcontextprotocol/clientInfo": clientInfo,
  "io.modelcontextprotocol/clientCapabilities": clientCapabilities };
const ask = async (method, params) => (await rawDispatch({ method, params: { _meta: meta, ...params } })).result;
const { taskId } = await ask("tools/call", { name: "run_python", arguments: { code: "while True: pass" } });
await ask("tasks/update", { taskId, inputResponses: {} });
await ask("tasks/cancel", { taskId });
while ((await ask("tasks/get", { taskId })).status === "working");
await session.close();
await client.close();
console.log(JSON.stringify({ quick, late, failed, statuses: [...new Set(statuses)] }));
