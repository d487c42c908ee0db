"""The `openai` package: the code while the model writes it, what it printed, the answer, and the files it cites."""

import os

import openai

with openai.OpenAI() as client:  # OPENAI_BASE_URL, OPENAI_API_KEY
    with client.responses.stream(
        model=os.environ["OPENAI_MODEL"],
        input="Write the first ten squares to squares.csv.",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        include=["code_interpreter_call.outputs"],
    ) as events:
        for event in events:
            if event.type in ("response.code_interpreter_call_code.delta", "response.output_text.delta"):
                print(event.delta, end="", flush=True)
            elif event.type == "response.output_item.done" and event.item.type == "code_interpreter_call":
                print("\n>", *(output.logs for output in event.item.outputs if output.type == "logs"))
        response = events.get_final_response()

    for file in (file for item in response.output if item.type == "message" for file in item.content[0].annotations):
        content = client.containers.files.content.retrieve(file.file_id, container_id=file.container_id)
        print(f"\n{file.filename}: {len(content.read())} bytes")
