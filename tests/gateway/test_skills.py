"""`/v1/skills` by OpenAI's own client, and skills in containers: by reference, inline, and the hostile ones."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agent_tools.containers.records import Upload
from agent_tools.gateway.files import Uploads
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.skills import UploadedSkills
from agent_tools.gateway.store.records import StoredSkill, StoredSkillVersion
from agent_tools.skills.bundle import read_zip
from agent_tools.skills.shelf import UNUSED_SECONDS
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import KEYS, post
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_response
from tests.skills import MANIFEST, skill_folder
from tests.unit.skills.test_bundle import BAD, zipped
from tests.waiting import until

FILES = [("m/SKILL.md", MANIFEST), ("m/scripts/a.py", b"#!/usr/bin/env python\nprint(1)")]
LINE = "- m: Does things. (/skills/m/SKILL.md)"


def packed(*files: tuple[str, bytes]) -> tuple[str, bytes, str]:
    return ("m.zip", zipped(*files), "application/zip")


def contents(answer: Any) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(answer.read())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def inline(archive: bytes = zipped(*FILES), name: str = "m", **source: str) -> dict[str, Any]:
    data = base64.b64encode(archive).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": data, **source}
    return {"type": "inline", "name": name, "description": "Does things.", "source": source}


def shell(*skills: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "shell", "environment": {"type": "container_auto", "skills": list(skills)}}]


def told_by(gateway: Gateway, tool: str = "shell") -> str:
    """Return the description of a tool in the latest request to the model."""
    tools = gateway.upstream.requests[-1]["tools"]
    return str(next(each["function"]["description"] for each in tools if each["function"]["name"] == tool))


def test_skills_that_wait_to_be_read_leave_the_threads_of_other_requests_free(gateway: Gateway) -> None:
    reading = gateway.services.skills._reading
    with ThreadPoolExecutor(50) as senders:
        with reading, reading:
            url, files = f"{gateway.url}/v1/skills", {"files": packed(*FILES)}
            answers = [senders.submit(httpx.post, url, files=files, timeout=60) for _ in range(50)]
            until(lambda: gateway.services.metrics.in_flight._value.get() == 50)
            assert httpx.get(f"{gateway.url}/v1/responses/resp_1", timeout=30).status_code == 404
        assert {each.result().status_code for each in answers} == {200}


@pytest.fixture
def gateway(new_gateway: NewGateway) -> Gateway:
    return new_gateway({"m": lambda _: ScriptedReply("Ok.")})


@pytest.fixture
def client(gateway: Gateway) -> openai.OpenAI:
    return gateway.client()


def test_openais_client_has_every_route(client: openai.OpenAI) -> None:
    skills = client.skills
    made = skills.create(files=FILES)
    assert (made.name, made.description, made.default_version, made.latest_version) == ("m", "Does things.", "1", "1")
    second = skills.versions.create(made.id, files=packed(("m/SKILL.md", MANIFEST + b"2")))
    assert (second.version, second.skill_id, second.name, second.object) == ("2", made.id, "m", "skill.version")
    now = skills.retrieve(made.id)
    assert (now.default_version, now.latest_version) == ("1", "2")
    assert [each.version for each in skills.versions.list(made.id)] == ["2", "1"]
    first = skills.versions.list(made.id, order="asc", limit=1)
    assert ([each.version for each in first.data], first.has_more) == (["1"], True)
    assert [each.version for each in first] == ["1", "2"]
    assert contents(skills.content.retrieve(made.id)) == dict(FILES)
    assert contents(skills.versions.content.retrieve("latest", skill_id=made.id))["m/SKILL.md"] == MANIFEST + b"2"
    assert skills.update(made.id, default_version="2").default_version == "2"
    assert skills.versions.retrieve("2", skill_id=made.id) == second
    with pytest.raises(openai.BadRequestError, match="default version cannot be deleted"):
        skills.versions.delete("2", skill_id=made.id)
    gone = skills.versions.delete("1", skill_id=made.id)
    assert (gone.object, gone.version, gone.deleted) == ("skill.version.deleted", "1", True)
    third = skills.versions.create(made.id, files=FILES, default=True)
    assert (third.version, skills.retrieve(made.id).default_version) == ("3", "3")
    other = skills.create(files=FILES)
    assert [each.id for each in skills.list(order="asc")] == [made.id, other.id]
    assert skills.delete(made.id).object == "skill.deleted"
    assert [each.id for each in skills.list()] == [other.id]
    for ask in (skills.retrieve, skills.content.retrieve, skills.versions.list, skills.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.NotFoundError):
        skills.update(other.id, default_version="9")


def test_a_skill_that_is_just_being_deleted_is_not_shown(gateway: Gateway, client: openai.OpenAI) -> None:
    made = client.skills.create(files=FILES)
    gateway.services.store.delete(StoredSkillVersion, skill_id=made.id)
    assert client.skills.list().data == []
    with pytest.raises(openai.NotFoundError):
        client.skills.retrieve(made.id)


class DeletingUploads:
    """Uploads during which a skill is deleted."""

    def __init__(self, uploads: Uploads, delete: Callable[[], object]) -> None:
        self._uploads = uploads
        self._delete = delete

    def add(self, *args: Any, **options: Any) -> Any:
        self._delete()
        return self._uploads.add(*args, **options)

    def delete(self, id_: str) -> None:
        self._uploads.delete(id_)


def test_a_version_that_is_added_beside_a_deletion_is_not_stored(gateway: Gateway, client: openai.OpenAI) -> None:
    services, bundle = gateway.services, read_zip(zipped(*FILES))
    skill = services.skills.create("me", lambda: bundle)
    uploads = DeletingUploads(services.uploads, lambda: services.skills.delete(skill))
    with pytest.raises(ApiError, match="No skill"):
        UploadedSkills(services.config, services.store, uploads).add_version(skill, lambda: bundle, is_default=False)
    assert services.store.find(StoredSkillVersion) == []
    assert services.store.find(Upload) == []


def test_versions_whose_skill_is_gone_are_swept(gateway: Gateway) -> None:
    services, bundle = gateway.services, read_zip(zipped(*FILES))
    left, kept = (services.skills.create("me", lambda: bundle) for _ in range(2))
    services.store.delete(StoredSkill, id=left.id)  # as a gateway does that is killed then
    for each in services.store.find(Upload):
        services.store.change(Upload, each.id, created_at=0.0)
    assert services.uploads.sweep() == 0
    assert [each.skill_id for each in services.store.find(StoredSkillVersion)] == [kept.id]
    assert [each.id for each in services.store.find(Upload)] == [kept.versions[0].id]


def test_the_asynchronous_client_uploads_a_folder(gateway: Gateway, client: openai.OpenAI) -> None:
    async def made() -> str:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any") as ours:
            return (await ours.skills.create(files=FILES)).id

    assert contents(client.skills.content.retrieve(asyncio.run(made()))) == dict(FILES)


def test_a_skill_is_its_keys_alone_and_no_file(new_gateway: NewGateway) -> None:
    client, stranger = map(new_gateway({}, api_keys=KEYS).client, KEYS)
    made = client.skills.create(files=FILES)
    assert stranger.skills.list().data == []
    for ask in (stranger.skills.retrieve, stranger.skills.content.retrieve, stranger.skills.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.NotFoundError):
        stranger.containers.create(name="c", skills=[{"type": "skill_reference", "skill_id": made.id}])
    version = client.skills.versions.retrieve("1", skill_id=made.id).id
    assert client.files.list().data == []
    with pytest.raises(openai.NotFoundError):
        client.files.delete(version)


def test_skills_count_as_what_a_key_uploads_and_stay(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_uploads=2, retention=0.0)
    client = gateway.client()
    made = client.skills.create(files=FILES)
    gateway.services.sweep()
    assert contents(client.skills.content.retrieve(made.id)) == dict(FILES)
    client.skills.versions.create(made.id, files=FILES)
    with pytest.raises(openai.BadRequestError, match="2 files, the maximum"):
        client.skills.versions.create(made.id, files=FILES)
    client.skills.delete(made.id)
    assert list((gateway.services.config.data_dir / "uploads").iterdir()) == []


def test_bad_uploads_are_refused_with_their_reasons(client: openai.OpenAI) -> None:
    made = client.skills.create(files=FILES)
    given: dict[str, Any] = {case: ("m.zip", data) for case, (data, _) in BAD.items()}
    given["two files of one path"] = [FILES[0], FILES[0]]
    given["another name"] = [("n/SKILL.md", b"---\nname: n\ndescription: d\n---\n")]
    for case, files in given.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.skills.versions.create(made.id, files=files)
        assert refused.value.param == "files", case
        assert [each.version for each in client.skills.versions.list(made.id)] == ["1"], case


def test_a_form_of_too_much_is_refused_before_it_is_read(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.skills.create(files=[*FILES, ("m/large", bytes(66 * 2**20))])
    assert refused.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="Too many files"):
        client.skills.create(files=[*FILES, *((f"m/{n}", b"") for n in range(500))])
    answer = httpx.post(f"{client.base_url}skills", files={"other": ("a", b"")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "files")


def test_a_skill_is_mounted_in_the_container_of_a_response(gateway: Gateway, client: openai.OpenAI) -> None:
    made = client.skills.create(files=FILES)
    reference = {"type": "skill_reference", "skill_id": made.id, "version": "latest"}
    for given in (reference, inline()):
        answer = post(gateway, tools=shell(given)).json()
        assert told_by(gateway).endswith(LINE)
        (shown,) = answer["tools"][0]["environment"]["skills"]
        assert shown == (given if given is reference else {**given, "source": {**given["source"], "data": ""}})


def test_skills_of_the_clients_own_shell_are_named_to_the_model_and_mounted_nowhere(gateway: Gateway) -> None:
    skill = {"name": "m", "description": "Does\n\u202ethings.", "path": "/home/a/m/"}
    answer = post(gateway, tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}])
    assert told_by(gateway).endswith("\n- m: Does things. (/home/a/m/SKILL.md)")
    shown = {"name": "m", "description": "Does things.", "path": "/home/a/m/"}
    assert check_response(answer.json()).tools[0].environment.to_dict() == {"type": "local", "skills": [shown]}
    assert gateway.client().containers.list().data == []
    answer = post(gateway, tools=[{"type": "shell", "environment": {"type": "local", "skills": [{"name": "m"}]}}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].environment.skills[0].description")


def test_another_set_of_skills_is_another_container(new_gateway: NewGateway) -> None:
    run = ScriptedReply(calls=[ScriptedCall("shell", {"commands": ["echo 1"]})])
    gateway = new_gateway({"m": [run, "Ok.", run, "Ok.", run, "Ok."]})
    client = gateway.client()
    made = client.skills.create(files=FILES)
    latest = {"type": "skill_reference", "skill_id": made.id, "version": "latest"}
    first = post(gateway, tools=shell(latest)).json()
    client.skills.versions.create(made.id, files=packed(("m/SKILL.md", MANIFEST + b"2")))
    second = post(gateway, tools=shell(latest), previous_response_id=first["id"]).json()
    third = post(gateway, tools=shell(inline()), previous_response_id=second["id"]).json()
    calls = (each for answer in (first, second, third) for each in answer["output"] if each["type"] == "shell_call")
    ids = [each["environment"]["container_id"] for each in calls]
    assert ids[0] == ids[1] != ids[2]
    assert "is gone" in str(gateway.upstream.requests[-1]["messages"])


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an unknown skill": ([{"type": "skill_reference", "skill_id": "skill_0"}], ""),
    "no base64": ([inline(data="%")], "[0]"),
    "another name": ([inline(name="n")], "[0]"),
    "another type of media": ([inline(media_type="text/plain")], "[0].source.media_type"),
    "one name twice": ([inline(), inline()], "[1]"),
    "a bomb": ([inline(), inline(BAD["a bomb"][0])], "[1]"),
    "a path that leads out": ([inline(BAD["a path that leads out"][0])], "[0]"),
    "a link": ([inline(BAD["a link"][0])], "[0]"),
    "no type": ([{"skill_id": "skill_0"}], "[0].type"),
    "too many": ([inline()] * 21, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_skill_that_cannot_be_used_makes_no_container(gateway: Gateway, case: str) -> None:
    given, place = REFUSED[case]
    where = {"tools[0].environment.skills": {"tools": shell(*given)}, "skills": {"name": "c", "skills": given}}
    for path, body in where.items():
        answer = httpx.post(
            f"{gateway.url}/v1/{'containers' if 'name' in body else 'responses'}",
            json={"model": "m", "input": "Go.", **body},
        )
        assert answer.status_code == (404 if case == "an unknown skill" else 400), answer.text
        if case != "an unknown skill":
            assert answer.json()["error"]["param"] == path + place
    assert gateway.client().containers.list().data == []


def test_tools_share_the_skills_of_one(gateway: Gateway) -> None:
    code_tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    assert post(gateway, tools=[code_tool, *shell(inline())]).status_code == 200
    assert all(each["function"]["description"].endswith(LINE) for each in gateway.upstream.requests[-1]["tools"])
    own = {"type": "code_interpreter", "container": {"type": "auto", "skills": [inline(zipped(FILES[0]))]}}
    assert post(gateway, tools=[own]).status_code == 200
    assert told_by(gateway, "python").endswith(LINE)
    assert post(gateway, tools=[own, *shell(inline())]).status_code == 400


def test_a_name_of_the_operators_skills_is_taken(new_gateway: NewGateway, tmp_path: Path) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, skills=(str(skill_folder(tmp_path / "m")),))
    assert post(gateway, tools=shell()).status_code == 200
    assert told_by(gateway).endswith(LINE)
    answer = post(gateway, tools=shell(inline()))
    assert answer.status_code == 400
    assert "Two skills are named 'm'" in answer.json()["error"]["message"]


def test_a_container_keeps_its_skills_whatever_becomes_of_them(gateway: Gateway, client: openai.OpenAI) -> None:
    made = client.skills.create(files=FILES)
    given: Any = [{"type": "skill_reference", "skill_id": made.id}]
    container = client.containers.create(name="c", skills=given)
    client.skills.delete(made.id)
    shelf = gateway.services.config.data_dir / "skills"
    (copy,) = shelf.iterdir()
    os.utime(copy, (0, time.time() - 2 * UNUSED_SECONDS))
    gateway.services.sweep()
    post(
        gateway, tools=[{"type": "shell", "environment": {"type": "container_reference", "container_id": container.id}}]
    )
    assert told_by(gateway).endswith(LINE)
    client.containers.delete(container.id)
    os.utime(copy, (0, time.time() - 2 * UNUSED_SECONDS))
    gateway.services.sweep()
    assert list(shelf.iterdir()) == []
