"""What every client is given, and what it tells at its end: its answers to two questions, as a line of JSON."""

import json
import os

BASE_URL, KEY, MODEL = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["OPENAI_MODEL"]
FIRST, AGAIN = "Go.", "And again?"
TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}


def report(*answers: object) -> None:
    """Print the answers of both turns; one, of a client that has no second one."""
    print(json.dumps({"answers": [str(answer) for answer in answers]}), flush=True)
