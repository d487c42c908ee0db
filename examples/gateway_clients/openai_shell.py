"""The `openai` package and the shell: the commands while the model writes them, what they print while they run."""

import os
import sys

import openai

with openai.OpenAI() as client:  # OPENAI_BASE_URL, OPENAI_API_KEY
    with client.responses.stream(
        model=os.environ["OPENAI_MODEL"],
        input="How many lines of Python does the standard library have?",
        tools=[{"type": "shell", "environment": {"type": "container_auto"}}],
    ) as events:
        for event in events:
            match event.type:
                case "response.shell_call_command.added":
                    print("\n$ " if event.command_index else "$ ", end="")
                case "response.shell_call_command.delta" | "response.output_text.delta":
                    print(event.delta, end="", flush=True)
                case "response.output_item.done" if event.item.type == "shell_call":
                    print()
                case "response.shell_call_output_content.delta":
                    print(event.delta.stdout or "", end="", flush=True)
                    print(event.delta.stderr or "", end="", flush=True, file=sys.stderr)
        response = events.get_final_response()

    outputs = [output for item in response.output if item.type == "shell_call_output" for output in item.output]
    print("\n>", *(vars(output.outcome) for output in outputs))
