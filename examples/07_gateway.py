"""The stock OpenAI client and a code interpreter of your own behind it: only the base URL changes.

With OPENAI_BASE_URL (and OPENAI_API_KEY, OPENAI_MODEL) the model is yours; without, a scripted one answers. With --page
the gateway stays, and its page can be tried, until Ctrl-C.
"""

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress

import openai

from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer

CODE = """
walks = np.random.default_rng(0).choice([-1, 1], size=(1000, 200)).cumsum(axis=1)
plt.hist(walks[:, -1], bins=30); plt.title("Where 1000 random walks end"); plt.savefig("walks.png"); plt.close()
print("mean distance", round(float(abs(walks[:, -1]).mean()), 2))
"""
SCRIPT = [
    ScriptedReply(calls=[ScriptedCall("python", {"code": CODE})], piece=40),
    ScriptedReply(text="After 200 steps a walk is about 11 steps away: [see](sandbox:/mnt/data/walks.png).", piece=12),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


with ExitStack() as stack:
    upstream = os.environ.get("OPENAI_BASE_URL")
    if not upstream:
        upstream = stack.enter_context(ScriptedServer({"scripted": SCRIPT * 100})).base_url
    port = free_port()
    folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", upstream, "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    gateway = subprocess.Popen([*command, "--data-dir", folder], **quiet)
    stack.callback(gateway.wait)
    stack.callback(gateway.terminate)

    client = stack.enter_context(openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=9))
    with client.responses.stream(
        model=os.environ.get("OPENAI_MODEL", "scripted"),
        input="How far does a random walk get in 200 steps? Simulate it, and draw a histogram to walks.png.",
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        include=["code_interpreter_call.outputs"],
    ) as events:
        for event in events:
            if event.type in ("response.code_interpreter_call_code.delta", "response.output_text.delta"):
                print(event.delta, end="", flush=True)
            elif event.type == "response.code_interpreter_call.interpreting":
                print("\n--- running")
            elif event.type == "response.output_item.done" and event.item.type == "code_interpreter_call":
                print("".join(output.logs for output in event.item.outputs or () if output.type == "logs"))
        response = events.get_final_response()

    for part in (part for item in response.output if item.type == "message" for part in item.content):
        for cited in part.annotations:
            content = client.containers.files.content.retrieve(cited.file_id, container_id=cited.container_id).read()
            print(f"\n{cited.filename}: {len(content):,} bytes")

    if "--page" in sys.argv:
        print(f"\nhttp://127.0.0.1:{port}/ is the page; Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):
            gateway.wait()
