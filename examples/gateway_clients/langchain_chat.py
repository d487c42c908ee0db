"""LangChain: the code interpreter as a tool of the server, its calls and results as content blocks."""

import os

from langchain_openai import ChatOpenAI

llm = ChatOpenAI(
    model=os.environ["OPENAI_MODEL"],  # asked at OPENAI_BASE_URL, with OPENAI_API_KEY
    use_responses_api=True,
    include=["code_interpreter_call.outputs"],
).bind_tools([{"type": "code_interpreter", "container": {"type": "auto"}}])

for block in llm.invoke("Write the first ten squares to squares.csv.").content_blocks:
    if block["type"] == "server_tool_call":
        print(block["args"]["code"])
    elif block["type"] == "server_tool_result":
        print(">", *(output["logs"] for output in block["output"] if output["type"] == "logs"))
    elif block["type"] == "text":
        print(block["text"])
