"""A stored response as a notebook."""

from __future__ import annotations

import httpx
import nbformat

from agent_tools.gateway.responses.notebook import notebook_of_items
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import INCLUDE, code, post
from tests.gateway.conftest import NewGateway

PNG = "data:image/png;base64,iVBORw=="


def test_a_stored_response_is_a_notebook_with_its_code_and_outputs(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20\nprint(x)"), ScriptedReply("It is 20.")]})
    id_ = post(gateway, input="How much?", include=INCLUDE).json()["id"]
    answer = httpx.get(f"{gateway.url}/v1/responses/{id_}/notebook")
    assert f'filename="{id_}.ipynb"' in answer.headers["content-disposition"]
    nbformat.validate(nbformat.from_dict(answer.json()))
    asked, ran, told = answer.json()["cells"]
    assert asked["source"] == ["**User:** How much?"]
    assert ran["source"] == ["x = 20\n", "print(x)"]
    assert ran["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["20\n"]}]
    assert told["source"] == ["**Assistant:** It is 20."]
    assert httpx.get(f"{gateway.url}/v1/responses/resp_none/notebook").status_code == 404


def test_pictures_are_shown_and_links_stay_text() -> None:
    outputs = [{"type": "image", "url": PNG}, {"type": "image", "url": "sandbox:/a.png"}, {"type": "?"}, None]
    made = notebook_of_items([{"type": "code_interpreter_call", "code": "1", "outputs": outputs}])
    nbformat.validate(nbformat.from_dict(made))
    shown = [output["data"] for output in made["cells"][0]["outputs"]]
    assert shown == [{"image/png": "iVBORw==\n"}, {"text/plain": ["sandbox:/a.png"]}]


def test_an_item_whose_type_is_null_is_a_message(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    given = {"type": None, "role": "user", "content": "Hi."}
    assert post(gateway, input=[given]).json()["status"] == "completed"
    assert [cell["source"] for cell in notebook_of_items([given])["cells"]] == [["**User:** Hi."]]


def test_items_of_other_kinds_and_without_text_are_left_out() -> None:
    items = [{"type": "reasoning"}, {"role": "user", "content": None}, {"type": "code_interpreter_call", "code": None}]
    assert notebook_of_items(items)["cells"] == []
