// openai-node: the code while the model writes it, what it printed, the answer, and the files it cites.
import OpenAI from "openai";

const client = new OpenAI(); // OPENAI_BASE_URL, OPENAI_API_KEY
const stream = client.responses.stream({
  model: process.env.OPENAI_MODEL,
  input: "Write the first ten squares to squares.csv.",
  tools: [{ type: "code_interpreter", container: { type: "auto" } }],
  include: ["code_interpreter_call.outputs"],
});

for await (const event of stream) {
  if (event.type === "response.code_interpreter_call_code.delta") process.stdout.write(event.delta);
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
  if (event.type === "response.output_item.done" && event.item.type === "code_interpreter_call")
    console.log("\n>", ...event.item.outputs.map((output) => output.logs ?? "(an image)"));
}

const { output } = await stream.finalResponse();
for (const file of output.flatMap((item) => item.content?.[0].annotations ?? [])) {
  const content = await client.containers.files.content.retrieve(file.file_id, { container_id: file.container_id });
  console.log(`\n${file.filename}: ${(await content.arrayBuffer()).byteLength} bytes`);
}
