"""Deleting all that a key owns, while its gateway runs and after its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.containers.keys import digest, owner_of_digest
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.serving.purge import purge
from agent_tools.gateway.store.records import StoredEvents, StoredItem
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.store.tables import metadata
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, KEYS, code
from tests.gateway.conftest import Gateway, NewGateway
from tests.identity_provider import IdentityProvider
from tests.skills import MANIFEST

OWNERS = [owner_of_digest(digest(key)) for key in KEYS]


def used(gateway: Gateway, key: str) -> None:
    """Have a key own something of every kind."""
    client = gateway.client(key)
    client.files.create(file=("a.txt", b"secret"), purpose="user_data")
    upload = client.uploads.create(bytes=12, filename="b.txt", mime_type="text/plain", purpose="user_data")
    client.uploads.parts.create(upload.id, data=b"secret")
    skill = client.skills.create(files=[("m/SKILL.md", MANIFEST + f"The secret of {key}.".encode())])
    client.containers.create(name="c", skills=[{"type": "skill_reference", "skill_id": skill.id}])
    conversation = client.conversations.create(items=[{"role": "user", "content": "secret"}])
    client.responses.create(model="m", input="Go.", tools=[CODE_TOOL], conversation=conversation.id)  # type: ignore[list-item]
    list(client.responses.create(model="text", input="secret", background=True, stream=True))


def left(store: Store, data_dir: Path, owner: str) -> tuple[set[str], int]:
    """The tables that name an owner, and the number of files in `data_dir` that hold the secret."""
    with store._engine.connect() as connection:
        named = {
            name
            for name, table in metadata.tables.items()
            if "owner" in table.c and connection.execute(sa.select(table).where(table.c.owner == owner)).first()
        }
        number = connection.execute(sa.select(sa.func.count()).select_from(metadata.tables["events"])).scalar_one()
    files = [path for path in data_dir.rglob("*") if path.is_file() and "gateway" not in path.name]
    return named, number + sum(b"secret" in path.read_bytes() for path in files)


@pytest.mark.parametrize("is_running", [True, False])
def test_nothing_of_an_owner_is_left_and_another_keeps_everything(new_gateway: NewGateway, is_running: bool) -> None:
    script = [code("x = 'secret'; open('a.txt', 'w').write(x)"), ScriptedReply(text="Done.")] * 2
    gateway = new_gateway({"m": script, "text": lambda _: ScriptedReply(text="secret")}, api_keys=KEYS)
    for key in KEYS:
        used(gateway, key)
    gateway.services.usage.flush()
    config = gateway.services.config
    if not is_running:
        gateway.__exit__()
    store = Store(config.database_url)
    tables, amount = left(store, config.data_dir, OWNERS[0])
    assert tables >= {"responses", "items", "containers", "uploads", "conversations", "conversation_items", "calls"}

    def wait(_: float) -> None:
        gateway.services.sweep()  # as it does every few seconds

    assert purge(config, store, OWNERS[0], wait) == 0
    assert left(store, config.data_dir, OWNERS[0])[0] == set()
    kept, amount_kept = left(store, config.data_dir, OWNERS[1])
    assert kept == tables >= {"skills", "skill_versions"}
    assert [path.read_bytes().endswith(f"{KEYS[1]}.".encode()) for path in config.data_dir.glob("skills/*/m/*")] == [
        True
    ]
    assert amount_kept == amount / 2
    store.close()


def test_the_events_of_many_responses_are_deleted_together(work_dir: Path) -> None:
    (work_dir / "skills").mkdir()
    store, deleted = Store(f"sqlite:///{work_dir}/s.db"), list[str]()
    ids = [f"resp_{number}" for number in range(1_001)]
    store.add(*(StoredItem(id=id_, owner="me", created_at=1.0, response_id=id_) for id_ in ids))
    store.add(*(StoredEvents(id=id_, created_at=1.0, data=b"x") for id_ in ids))

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        deleted.extend([statement] * statement.startswith("DELETE FROM events"))

    sa.event.listen(store._engine, "before_cursor_execute", note)
    purge(GatewayConfig("http://u", data_dir=work_dir), store, "me")
    assert (store.count(StoredEvents), len(deleted)) == (0, 3)
    store.close()


def test_the_command_asks_first_and_revokes(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"text": lambda _: ScriptedReply(text="secret")}, named_keys=True)
    config = gateway.services.config
    command = ["keys", "--data-dir", str(config.data_dir)]
    key = CliRunner().invoke(cli, [*command, "add", "alice"]).output.strip()
    gateway.services._read_keys()
    gateway.client(key).responses.create(model="text", input="secret")
    gateway.__exit__()
    owner = owner_of_digest(digest(key))
    store = Store(config.database_url)
    assert CliRunner().invoke(cli, [*command, "purge", "alice"], input="n\n").exit_code == 1
    assert left(store, config.data_dir, owner)[0] >= {"responses"}
    done = CliRunner().invoke(cli, [*command, "purge", "alice", "--yes"])
    assert done.exit_code == 0, done.output
    assert left(store, config.data_dir, owner) == ({"api_keys"}, 0)
    assert "revoked" in CliRunner().invoke(cli, [*command, "list"]).output
    store.close()


def test_a_user_who_has_signed_on_is_purged_by_the_owner(new_gateway: NewGateway) -> None:
    with IdentityProvider() as provider:
        gateway = new_gateway({"text": lambda _: ScriptedReply(text="secret")}, **provider.settings)
        command = ["keys", "--data-dir", str(gateway.services.config.data_dir)]
        for user in ("ann", "bob"):
            gateway.client(provider.token(user)).responses.create(model="text", input="secret")
        owners = [
            gateway.services.keys.caller({"authorization": f"Bearer {provider.token(user)}"}).owner
            for user in ("ann", "bob")
        ]
        config = gateway.services.config
        gateway.__exit__()
    store = Store(config.database_url)
    NamedKeys(store).add("few", KeyLimits(), group="few")
    for wrong in (["few"], [], ["few", "--owner", owners[0]], ["--owner", "ann"]):
        refused = CliRunner().invoke(cli, [*command, "purge", "--yes", *wrong])
        assert refused.exit_code != 0
        assert "owner" in refused.output + str(refused.exception)
    assert CliRunner().invoke(cli, [*command, "purge", "--yes", "--owner", owners[0]]).exit_code == 0
    assert left(store, config.data_dir, owners[0])[0] == set()
    assert left(store, config.data_dir, owners[1])[0] >= {"responses", "usage"}
    store.close()
