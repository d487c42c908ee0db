"""Named keys: made, limited and revoked while gateways run."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.containers.failures import RowsAway
from agent_tools.containers.keys import digest
from agent_tools.errors import InvalidParams
from agent_tools.gateway import named_keys
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.named_keys import READ_EVERY, KeyLimits, NamedKeys
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.auth import AcceptedKey, RequestKeys
from agent_tools.gateway.store.records import ApiKey, ResponseHead
from agent_tools.gateway.store.store import Store
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, EXECUTE, KEYS, SLEEP, code, refused, until
from tests.gateway.conftest import Gateway, NewGateway

NO_LIMITS = KeyLimits()


def status(gateway: Gateway, key: str) -> int:
    return httpx.get(f"{gateway.url}/v1/containers", headers={"Authorization": f"Bearer {key}"}).status_code


@pytest.fixture
def store(work_dir: Path) -> Store:
    return Store(f"sqlite:///{work_dir / 'keys.db'}")


def test_a_key_is_accepted_and_refused_without_a_restart(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, named_keys=True)
    assert status(gateway, "no-key-at-all") == 401
    named = NamedKeys(gateway.services.store)
    key = named.add("alice", NO_LIMITS)
    until(lambda: status(gateway, key) == 200)  # its thread reads the table; nobody tells it
    container = gateway.client(key).containers.create(name="c").id
    named.revoke("alice")
    until(lambda: status(gateway, key) == 401)
    assert container in {row.id for row in gateway.services.containers.all_of(key_owner(named, "alice"))}
    assert READ_EVERY <= 5


def test_keys_that_nobody_is_asked_for_are_told_at_the_start(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    before = new_gateway({}, named_keys=True)
    NamedKeys(before.services.store).add("alice", NO_LIMITS)
    assert "named_keys is off" not in caplog.text
    new_gateway({}, data_dir=before.services.config.data_dir)
    assert "named_keys is off" in caplog.text


def key_owner(named: NamedKeys, name: str) -> str:
    return next(row.owner for row in named.all() if row.id == name)


def test_a_key_of_the_setting_that_gets_a_name_keeps_what_it_owns(new_gateway: NewGateway) -> None:
    before = new_gateway({}, api_keys=KEYS)
    made = before.client(KEYS[0]).containers.create(name="mine").id
    NamedKeys(before.services.store).add("moved", NO_LIMITS, KEYS[0])
    after = new_gateway({}, named_keys=True, data_dir=before.services.config.data_dir)
    assert [each.id for each in after.client(KEYS[0]).containers.list()] == [made]
    assert status(after, KEYS[1]) == 401


def test_a_revoked_key_is_refused_also_if_it_still_stands_in_the_setting(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, named_keys=True, api_keys=KEYS)
    named = NamedKeys(gateway.services.store)
    named.add("moved", NO_LIMITS, KEYS[0])
    assert status(gateway, KEYS[0]) == 200
    named.revoke("moved")
    until(lambda: status(gateway, KEYS[0]) == 401)
    assert status(gateway, KEYS[1]) == 200


def test_a_key_has_limits_of_its_own(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, named_keys=True, max_containers=3)
    named = NamedKeys(gateway.services.store)
    small, usual = named.add("small", KeyLimits(max_containers=1)), named.add("usual", NO_LIMITS)
    named.read_into(gateway.services.keys)
    gateway.client(small).containers.create(name="a")
    assert refused(lambda: gateway.client(small).containers.create(name="b"))[0] == 429
    for name in ("a", "b", "c"):
        gateway.client(usual).containers.create(name=name)
    assert "3 containers" in refused(lambda: gateway.client(usual).containers.create(name="d"))[2]
    named.limit("small", KeyLimits(max_containers=2))
    named.limit("usual", KeyLimits(max_containers=0))  # none, not any number
    named.read_into(gateway.services.keys)
    assert gateway.client(small).containers.create(name="b").id
    assert refused(lambda: gateway.client(usual).containers.create(name="d"))[0] == 429


def test_a_key_may_send_so_many_requests_in_a_minute(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, named_keys=True, max_requests_per_minute=2)
    named = NamedKeys(gateway.services.store)
    usual, more = named.add("usual", NO_LIMITS), named.add("more", KeyLimits(max_requests_per_minute=0))
    named.read_into(gateway.services.keys)
    assert [status(gateway, usual) for _ in range(3)] == [200, 200, 429]
    assert [status(gateway, more) for _ in range(5)] == [200] * 5
    answer = httpx.get(f"{gateway.url}/v1/models", headers={"api-key": usual})
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    text = httpx.get(f"{gateway.url}/metrics").text
    assert 'agent_tools_key_requests_total{end="limited",key="usual"} 2.0' in text
    assert 'agent_tools_key_requests_total{end="2xx",key="more"} 5.0' in text
    assert usual not in text


def test_a_database_that_is_away_leaves_the_keys_of_before(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, named_keys=True)
    key = NamedKeys(gateway.services.store).add("alice", NO_LIMITS)
    until(lambda: status(gateway, key) == 200)
    find, gateway.services.store.find = gateway.services.store.find, _away  # type: ignore[method-assign,assignment]
    with pytest.raises(RowsAway):
        gateway.services._read_keys()
    gateway.services.store.find = find  # type: ignore[method-assign]
    assert status(gateway, key) == 200


def _away(*_: object, **__: object) -> object:
    raise RowsAway


def test_nobody_is_let_in_by_a_key_that_may_be_revoked_for_long() -> None:
    now = [0.0]
    keys = RequestKeys(["a-key-of-the-setting"], with_named=True, max_age=300.0, clock=lambda: now[0])
    keys.accept_named({digest("a-named-key"): AcceptedKey("me", "alice")})
    headers = {name: {"authorization": f"Bearer {name}"} for name in ("a-named-key", "a-key-of-the-setting")}
    now[0] = 300.0
    assert keys.caller(headers["a-named-key"]).name == "alice"
    now[0] = 301.0
    with pytest.raises(ApiError) as refused:
        keys.caller(headers["a-named-key"])
    assert (refused.value.status, refused.value.code) == (503, "database_unavailable")
    assert keys.caller(headers["a-key-of-the-setting"]).name == "setting-1"
    keys.accept_named({digest("a-named-key"): AcceptedKey("me", "alice")})
    assert keys.caller(headers["a-named-key"]).name == "alice"


class Owner(str):
    """An owner that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Owner.compared += 1
        return str.__eq__(self, other)


def test_the_key_of_an_owner_is_found_without_a_look_at_the_others() -> None:
    keys = RequestKeys([], with_named=True)
    keys.accept_named(
        {digest(str(number)): AcceptedKey(Owner(f"me {number}"), f"n{number}") for number in range(1_000)}
    )
    Owner.compared = 0
    assert (keys.name_of("me 999"), keys.name_of("other")) == ("n999", "local")
    assert (keys.user_of("me 999"), keys.max_containers("me 999", 7), keys.volumes("other", ())) == ("", 7, ())
    assert Owner.compared < 10


def test_what_a_revoked_key_has_under_way_ends(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: code(SLEEP)}, named_keys=True)
    named = NamedKeys(gateway.services.store)
    key, other = named.add("alice", NO_LIMITS), named.add("bob", NO_LIMITS)
    until(lambda: status(gateway, key) == 200)
    tools = [CODE_TOOL]
    asked = {"model": "m", "input": "Go.", "tools": tools, "background": True}
    ids = [gateway.client(each).responses.create(**asked).id for each in (key, other)]
    until(lambda: len(gateway.services.containers.running()) == 2)
    named.revoke("alice")
    until(lambda: len(gateway.services.containers.running()) == 1)

    def ended() -> bool:
        row = gateway.services.store.get(ResponseHead, ids[0])
        return bool(row) and row.status not in ("queued", "in_progress")

    until(ended)
    assert gateway.client(other).responses.retrieve(ids[1]).status == "in_progress"


def test_keys_are_read_while_the_sandboxes_of_a_revoked_one_take_long_to_end(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = new_gateway({}, named_keys=True)
    named, ending, may_end = NamedKeys(gateway.services.store), threading.Event(), threading.Event()
    keys = {name: named.add(name, NO_LIMITS) for name in ("alice", "bob", "carol")}
    until(lambda: status(gateway, keys["carol"]) == 200)
    stopped: list[frozenset[str]] = []

    def stop(owners: frozenset[str]) -> None:
        stopped.append(owners)
        ending.set()
        may_end.wait()

    monkeypatch.setattr(gateway.services.containers, "stop", stop)
    try:
        named.revoke("alice")
        assert ending.wait(60)
        for name in ("bob", "carol"):
            named.revoke(name)
            until(lambda key=keys[name]: status(gateway, key) == 401)
    finally:
        may_end.set()
    until(lambda: len(stopped) == 2)
    owners = [key_owner(named, name) for name in keys]
    assert stopped == [{owners[0]}, {*owners[1:]}]  # all that wait at once, since each stop reads all rows


def test_a_stream_that_is_passed_on_is_cut_where_its_key_is_revoked(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    held = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="One two three", piece=1, wait_midway=held)]}, named_keys=True)
    named = NamedKeys(gateway.services.store)
    key = named.add("alice", NO_LIMITS)
    until(lambda: status(gateway, key) == 200)
    asked = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=asked, headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        named.revoke("alice")
        until(lambda: status(gateway, key) == 401)
        held.set()
        with pytest.raises(httpx.HTTPError):
            list(lines)
    assert "Traceback" not in caplog.text


def test_a_routed_chat_whose_key_is_revoked_does_not_look_complete(new_gateway: NewGateway) -> None:
    held = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="One two three", piece=1, wait_midway=held)]}, named_keys=True)
    named = NamedKeys(gateway.services.store)
    key = named.add("alice", NO_LIMITS)
    until(lambda: status(gateway, key) == 200)
    asked = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "tools": [EXECUTE], "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=asked, headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        named.revoke("alice")
        said = "".join(lines)
    held.set()
    assert "The API key was revoked." in said
    assert '"finish_reason": "stop"' not in said
    assert '"finish_reason":"stop"' not in said


def test_a_clients_key_never_reaches_the_upstream(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]}, named_keys=True)
    key = NamedKeys(gateway.services.store).add("alice", NO_LIMITS)
    gateway.services._read_keys()
    gateway.client(key).responses.create(model="m", input="Go.")
    assert gateway.upstream.headers[0]["authorization"] == "Bearer none"


@pytest.mark.parametrize("name", ["", "Alice", "a b", "../a", "a" * 64, "setting-1", "local", "-a"])
def test_a_name_that_cannot_be_used_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidParams, match="no name for a key"):
        NamedKeys(store).add(name, NO_LIMITS)
    store.close()


def test_names_and_keys_are_used_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    named = NamedKeys(store)
    key = named.add("a", NO_LIMITS)
    for name, given in (("a", ""), ("b", key)):
        with pytest.raises(InvalidParams, match="was used before"):
            named.add(name, NO_LIMITS, given)
    with pytest.raises(InvalidParams, match="fewer than 8"):
        named.add("b", NO_LIMITS, "short")
    named.revoke("a")
    with pytest.raises(InvalidParams, match="was used before"):
        named.add("a", NO_LIMITS)
    for use in (named.revoke, lambda name: named.limit(name, NO_LIMITS)):
        with pytest.raises(InvalidParams, match="no key 'nobody'"):
            use("nobody")
    with pytest.raises(InvalidParams, match="out of range"):
        KeyLimits(max_containers=-1)
    monkeypatch.setattr(named_keys, "MAX_KEYS", 1)
    with pytest.raises(InvalidParams, match="the maximum"):
        named.add("c", NO_LIMITS)
    assert key not in repr(store.find(ApiKey))
    store.close()


def test_the_command_makes_lists_limits_and_revokes(work_dir: Path) -> None:
    def keys(*arguments: str, given: str = "", told: str = "") -> str:
        done = CliRunner().invoke(cli, ["keys", "--data-dir", str(work_dir), *arguments], input=given)
        assert done.exit_code == 0, done.output
        assert told in done.stderr
        return done.stdout

    key = keys("add", "alice", "--max-containers", "5").strip()
    assert key.startswith("sk-at-")
    assert keys("add", "bob", "--stdin", given="a-key-of-before\n") == "a-key-of-before\n"
    keys(
        "limit", "alice", "--max-requests-per-minute", "60", told="alice has max_requests_per_minute=60; gateways apply"
    )
    keys("revoke", "bob", told="bob is revoked")
    keys("limit", "bob", "--volumes", "data,shared", told="bob has volumes=data,shared")
    server = keys("add", "open-webui", "--for-users", "--volumes", "").strip()
    keys("add", "chief", "--operator")
    alice, bob, open_webui, chief = keys("list").splitlines()
    assert chief.endswith("  operator")
    assert open_webui.endswith("for users, volumes=none")
    assert bob.endswith("volumes=data,shared")
    assert "  max_requests_per_minute=60" in alice
    assert "revoked" in bob
    assert key not in keys("list")
    store = Store(f"sqlite:///{work_dir / 'gateway.db'}")
    rows = NamedKeys(store).all()
    assert [(row.id, row.max_containers) for row in rows] == [
        (name, None) for name in ("alice", "bob", "open-webui", "chief")
    ]
    known = RequestKeys([], with_named=True)
    NamedKeys(store).read_into(known)
    named = {name: known.caller({"authorization": f"Bearer {each}"}) for name, each in (("a", key), ("o", server))}
    assert [named["a"].for_users, named["o"].for_users] == [False, True]
    store.close()


def test_an_address_that_others_reach_needs_some_kind_of_key() -> None:
    assert GatewayConfig("http://u/v1", host="0.0.0.0", named_keys=True).has_many_keys
    with pytest.raises(InvalidParams, match="named_keys"):
        GatewayConfig("http://u/v1", host="0.0.0.0")
