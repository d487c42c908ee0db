"""The command `llm`: a model of its extra-openai-models.yaml, and its conversation (-c)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, report

folder = Path(os.environ["CLIENT_FOLDER"])
entry = {"model_id": "ours", "model_name": MODEL, "api_base": BASE_URL, "api_key_name": "ours"}
folder.joinpath("extra-openai-models.yaml").write_text(json.dumps([entry]))
folder.joinpath("keys.json").write_text(json.dumps({"ours": KEY}))


def ask(*words: str) -> str:
    command = [Path(sys.executable).with_name("llm"), "-m", "ours", "--no-stream", *words]
    environment = {**os.environ, "LLM_USER_PATH": str(folder)}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


report(ask(FIRST), ask("-c", AGAIN))
