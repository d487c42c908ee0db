// openai-node: two turns, the first streamed; a container with files; a response in the background; two turns by WebSocket.
import OpenAI, { APIError, toFile } from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const client = new OpenAI({ maxRetries: 0 });
const tools = [{ type: "code_interpreter", container: { type: "auto" } }];

async function turns() {
  const asked = { model: "m", tools, include: ["code_interpreter_call.outputs"] };
  const kinds = [];
  const stream = client.responses.stream({ ...asked, input: "Go." });
  for await (const event of stream) kinds.push(event.type);
  const first = await stream.finalResponse();
  const second = await client.responses.create({ ...asked, input: "And now?", previous_response_id: first.id });
  return { kinds, first, second };
}

async function files() {
  const { id } = await client.containers.create({ name: "mine" });
  const given = await client.containers.files.create(id, { file: await toFile(Buffer.from("a,b\n1,2\n"), "in.csv") });
  const inContainer = [{ type: "code_interpreter", container: id }];
  const response = await client.responses.create({ model: "m", input: "Go.", tools: inContainer });
  const paths = [];
  for await (const file of client.containers.files.list(id)) paths.push(file.path);
  const [cited] = response.output.at(-1).content[0].annotations;
  const content = await client.containers.files.content.retrieve(cited.file_id, { container_id: id });
  const written = await content.text();
  await client.containers.delete(id);
  return { given, paths, written, gone: await refusal(client.containers.retrieve(id)) };
}

async function background() {
  const queued = await client.responses.create({ model: "m", input: "Go.", tools, background: true });
  let polled = queued;
  while (["queued", "in_progress"].includes(polled.status)) polled = await client.responses.retrieve(queued.id);
  const numbers = [];
  const rest = await client.responses.retrieve(queued.id, { stream: true, starting_after: 1 });
  for await (const event of rest) numbers.push(event.sequence_number);
  return { queued: queued.status, polled, numbers };
}

async function socket() {
  const asked = { type: "response.create", model: "m", tools, include: ["code_interpreter_call.outputs"], store: false };
  const ws = new ResponsesWS(client);
  const kinds = [];
  const ends = [];
  ws.send({ ...asked, input: "Go." });
  for await (const event of ws) {
    if (event.type === "error") throw event.error;
    if (event.type !== "message") continue;
    kinds.push(event.message.type);
    if (event.message.type !== "response.completed") continue;
    ends.push(event.message.response);
    if (ends.length === 2) break;
    ws.send({ ...asked, input: "And now?", previous_response_id: ends[0].id });
  }
  ws.close();
  return { kinds, first: ends[0], second: ends[1] };
}

async function refused() {
  const withoutContainer = [{ type: "code_interpreter" }];
  return refusal(client.responses.create({ model: "m", input: "Go.", tools: withoutContainer }));
}

async function refusal(request) {
  const error = await request.catch((thrown) => thrown);
  return { isApiError: error instanceof APIError, status: error.status, param: error.param, code: error.code };
}

const report = { turns, files, background, socket, refused };
console.log(JSON.stringify(await report[process.argv[2]]()));
