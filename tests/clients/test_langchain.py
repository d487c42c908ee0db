"""LangChain's ChatOpenAI, as it is, before the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import openai

from tests.clients.conversation import CODE_TOOL, FIRST, INCLUDE, LINK, SECOND, check_upstream, serve
from tests.gateway.conftest import Gateway, NewGateway

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.runnables import Runnable


@contextmanager
def model(gateway: Gateway) -> Iterator[Runnable[Any, AIMessage]]:
    from langchain_openai import ChatOpenAI  # only the worker that runs this file pays for it

    options: dict[str, Any] = {"use_responses_api": True, "include": INCLUDE, "max_retries": 0}
    with openai.DefaultHttpxClient() as connections:  # its own would stay open for good
        llm = ChatOpenAI(model="m", base_url=f"{gateway.url}/v1", api_key="any", http_client=connections, **options)
        yield llm.bind_tools([CODE_TOOL])


def blocks(message: AIMessage) -> list[dict[str, Any]]:
    return [dict(block) for block in message.content_blocks]


def check(first: AIMessage, second: AIMessage) -> None:
    call, result, said = blocks(first)
    assert (call["type"], call["name"], call["args"]) == ("server_tool_call", "code_interpreter", {"code": FIRST})
    assert (result["type"], result["tool_call_id"], result["status"]) == ("server_tool_result", call["id"], "success")
    logs, image = result["output"]
    assert logs == {"type": "logs", "logs": "x is 20\n"}
    assert image["url"].startswith("data:image/png;base64,")
    assert said["text"] == f"Twenty, see {LINK}."
    cited = said["annotations"][0]["value"]
    assert (cited["type"], cited["filename"]) == ("container_file_citation", "twenty.txt")
    again, shown, last = blocks(second)
    assert again["args"] == {"code": SECOND}
    assert shown["output"] == [{"type": "logs", "logs": "21"}]
    assert last["text"] == "21."
    assert call["extras"]["container_id"] == again["extras"]["container_id"] == cited["container_id"]
    assert second.usage_metadata is not None
    assert second.usage_metadata["total_tokens"] == 30


def test_two_turns(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    with model(gateway) as llm:
        first = llm.invoke("Go.")
        check(first, llm.invoke([("user", "Go."), first, ("user", "And now?")]))
    check_upstream(gateway)


def test_two_turns_streamed(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    with model(gateway) as llm:
        first: AIMessageChunk = reduce(add, llm.stream("Go."))
        chunks: list[Any] = list(llm.stream([("user", "Go."), first, ("user", "And now?")]))
    check(first, reduce(add, chunks))
    check_upstream(gateway)
    texts = [part.get("text") for chunk in chunks for part in chunk.content]
    assert [text for text in texts if text] == ["2", "1", "."]
