"""Pictures for the model: what its code draws, and uploads by their ids."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import pytest

from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses.input_files import InputFiles, upload_finder
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, DRAW, FUNCTION, INCLUDE, ask, code, outputs, post, run, upload
from tests.gateway.conftest import Gateway, NewGateway

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HEADS = {"png": PNG, "jpeg": b"\xff\xd8\xff\xe0" + b"a" * 20, "gif": b"GIF89a", "webp": b"RIFF1234WEBPVP8 "}


def parts(gateway: Gateway, number: int = -1) -> list[Any]:
    """The parts of the last message of a request, if it has any."""
    content = gateway.upstream.requests[number]["messages"][-1]["content"]  # type: ignore[attr-defined]
    return content if isinstance(content, list) else []


def saying(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, *given]}]


@pytest.mark.parametrize(("models", "shown"), [(("other", "m*"), 1), (("*",), 1), (("M",), 0), ((), 0)], ids=str)
def test_a_model_that_sees_is_shown_what_its_code_draws(
    new_gateway: NewGateway, models: tuple[str, ...], shown: int
) -> None:
    gateway = new_gateway({"m": [code(DRAW), "A dot."]}, vision_models=models)
    assert post(gateway).json()["status"] == "completed"
    pictures = [part["image_url"]["url"] for part in parts(gateway) if part["type"] == "image_url"]
    assert pictures == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"] * shown


def test_only_the_first_four_pictures_of_a_round_are_shown(new_gateway: NewGateway) -> None:
    both = ScriptedReply(calls=[ScriptedCall("python", {"code": DRAW}, id_) for id_ in "abcde"])
    gateway = new_gateway({"m": [both, "Dots."]}, vision_models=("m",))
    post(gateway)
    assert [part["type"] for part in parts(gateway)] == ["text", *["image_url"] * 4]


def test_they_are_shown_in_chat_completions_too(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [run(DRAW), "A dot."]}, vision_models=("m",))
    assert ask(gateway).status_code == 200
    assert [part["type"] for part in parts(gateway)] == ["text", "image_url"]


def test_the_next_response_still_sees_them(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(DRAW), "A dot.", "Still."]}, vision_models=("m",))
    first = post(gateway).json()
    post(gateway, previous_response_id=first["id"])
    contents = [message["content"] for message in gateway.upstream.requests[-1]["messages"]]  # type: ignore[attr-defined]
    assert sum(isinstance(content, list) for content in contents) == 1


@pytest.mark.parametrize("kind", HEADS)
def test_an_uploaded_picture_is_shown_by_its_id(new_gateway: NewGateway, kind: str) -> None:
    gateway = new_gateway({"m": ["A dot."]})
    id_ = gateway.client().files.create(file=("any", HEADS[kind]), purpose="vision").id
    post(gateway, input=saying({"type": "input_image", "file_id": id_, "detail": "auto"}), tools=[CODE_TOOL])
    url = f"data:image/{kind};base64,{base64.b64encode(HEADS[kind]).decode()}"
    assert parts(gateway) == [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": url}}]
    assert gateway.services.containers.all_of("local") == []


def test_one_in_a_functions_output_is_shown_too(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Rain."]})
    id_ = gateway.client().files.create(file=("a.png", PNG), purpose="vision").id
    output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "file_id": id_}]}
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    post(gateway, input=[*saying(), call, output], tools=[FUNCTION])
    assert [part["type"] for part in parts(gateway)] == ["text", "image_url"]


def test_what_is_no_picture_or_not_there_is_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    for id_, status in ((upload(gateway.client(), 8).id, 400), ("file_none", 404)):
        answer = post(gateway, input=saying({"type": "input_image", "file_id": id_}))
        assert answer.status_code == status, answer.text


def test_pictures_are_bounded_in_all(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_body_bytes=200)
    id_ = gateway.services.uploads.add("local", "a.png", "vision", open_picture(120)).id
    picture = {"type": "input_image", "file_id": id_}
    services = gateway.services
    files = InputFiles(services.files, upload_finder(services.uploads, "local"), None, 200)
    assert files.part(picture, "input[0]", True)["type"] == "image_url"
    with pytest.raises(ApiError, match="larger than 200 bytes"):
        files.part(picture, "input[0]", True)


def open_picture(size: int) -> io.BytesIO:
    return io.BytesIO(PNG[:8] + b"a" * (size - 8))


@pytest.mark.parametrize("source", ["url", "upload"])
def test_a_picture_has_the_detail_that_was_asked_for(new_gateway: NewGateway, source: str) -> None:
    gateway = new_gateway({"m": ["A dot."]})
    picture = {"image_url": "https://x/y.png"}
    if source == "upload":
        picture = {"file_id": gateway.client().files.create(file=("any", HEADS["png"]), purpose="vision").id}
    post(gateway, input=saying({"type": "input_image", **picture, "detail": "low"}))
    assert parts(gateway)[-1]["image_url"]["detail"] == "low"
    answer = post(gateway, input=saying({"type": "input_image", **picture, "detail": "lowest"}))
    assert answer.status_code == 400
    assert "auto, low, high, original" in answer.json()["error"]["message"]


LARGE = """
import io, os
from PIL import Image
from IPython.display import display, Image as Picture
for _ in range(6):
    Image.frombytes("RGB", (200, 200), os.urandom(120_000)).save(made := io.BytesIO(), "PNG")
    display(Picture(made.getvalue()))
"""


def test_large_pictures_of_code_are_files_of_the_container_and_fail_no_response(new_gateway: NewGateway) -> None:
    most = 1_500_000
    gateway = new_gateway({"m": [code(LARGE), "Six."]}, max_response_bytes=most)
    body = post(gateway, include=INCLUDE).json()
    assert (body["status"], body["error"]) == ("completed", None)
    urls = [each["url"] for each in outputs(body)[0]["outputs"]]
    assert [url.partition(":")[0] == "data" for url in urls] == [True] * 2 + [False] * 4
    for url in urls[2:]:
        assert httpx.get(f"{gateway.url}{url}").content.startswith(b"\x89PNG")
