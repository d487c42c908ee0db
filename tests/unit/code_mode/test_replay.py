"""Host calls recorded in a file and answered from it."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from agent_tools.code_mode import Policy, Toolset
from agent_tools.code_mode.replay import recorded
from agent_tools.errors import GuestError, InvalidParams
from agent_tools.runtime.host_calls.function import ArgumentError
from agent_tools.tools import CodeInterpreter
from tests.code_mode import process_runtime, template


class Shop:
    """Functions that count how often they really ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def price(self, thing: str) -> Any:
        """A price."""
        self.ran.append(thing)
        if thing == "air":
            raise KeyError(thing)
        return {"thing": thing, "bytes": b"\x00\xff", "set": {1, "a"}}

    async def pay(self, amount: int) -> int:
        """Pays."""
        self.ran.append(f"pay {amount}")
        return amount


SCRIPT = """
import asyncio
async def main(*things, pays=5):
    found = await asyncio.gather(*[price(each) for each in things], return_exceptions=True)
    return [each if isinstance(each, dict) else type(each).__name__ for each in found], await pay(pays)
"""


def run(shop: Shop, *args: Any, record: Path | None = None, replay: Path | None = None, **kwargs: Any) -> Any:
    tools = Toolset([shop.price, shop.pay])
    with template(tools).create(record=record, replay=replay) as script:
        script.load_script(SCRIPT)
        return script.run("main", *args, **kwargs)


def test_a_replay_gives_the_same_values_and_errors_and_calls_nothing(tmp_path: Path) -> None:
    file, live, replayed = tmp_path / "calls.jsonl", Shop(), Shop()
    first = run(live, "pear", "air", record=file)
    assert first[0][1] == "KeyError"
    assert len(live.ran) == 3
    assert run(replayed, "pear", "air", replay=file) == first
    assert replayed.ran == []


def test_a_replay_says_where_the_code_went_another_way_and_goes_no_further(tmp_path: Path) -> None:
    file, shop = tmp_path / "calls.jsonl", Shop()
    run(Shop(), "pear", record=file)
    with pytest.raises(GuestError, match=r"Call 1 is one of pay, where .* has a call of pay with other arguments"):
        run(shop, "pear", replay=file, pays=6)
    with pytest.raises(GuestError, match="Call 0 is one of pay, where the record has a call of price"):
        run(shop, replay=file, pays=5)
    assert shop.ran == []


def test_the_same_file_resumes_what_was_cut_off(tmp_path: Path) -> None:
    file, shop = tmp_path / "calls.jsonl", Shop()
    run(Shop(), "pear", "fig", record=file, replay=file)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[1], lines[2][:10]]) + "\n")  # call 0 was under way, call 2 half written
    missing = json.loads(lines[0])["seq"]
    assert run(shop, "pear", "fig", record=file, replay=file)[1] == 5
    assert shop.ran == [["pear", "fig"][missing], "pay 5"]
    again = Shop()
    run(again, "pear", "fig", replay=file)
    assert again.ran == []


def test_the_same_file_goes_on_live_from_the_first_call_that_differs(tmp_path: Path) -> None:
    file, shop, again = tmp_path / "calls.jsonl", Shop(), Shop()
    run(Shop(), "pear", record=file)
    assert run(shop, "pear", record=file, replay=file, pays=6)[1] == 6
    assert shop.ran == ["pay 6"]
    assert run(again, "pear", replay=file, pays=6)[1] == 6
    assert again.ran == []


def test_what_was_approved_and_recorded_is_not_asked_for_again(tmp_path: Path) -> None:
    asked: list[str] = []
    shop, file = Shop(), tmp_path / "calls.jsonl"
    for _ in range(2):
        tools = Toolset()
        tools.add(shop.pay, policy=Policy(approve=lambda request: asked.append(request.name) or True))
        with template(tools).create(record=file, replay=file) as script:
            script.load_script("async def main(): return await pay(1)")
            assert script.run("main") == 1
    assert asked == ["pay"]
    assert shop.ran == ["pay 1"]


def test_the_code_interpreter_records_and_replays_too(work_dir: Path, tmp_path: Path) -> None:
    shop = Shop()
    for options in ({"record": tmp_path / "r"}, {"replay": tmp_path / "r"}):
        cfg = {"work_dir": str(work_dir), **options}
        with CodeInterpreter(cfg, runtime=process_runtime(), hostcalls=[shop.pay]) as tool:
            assert tool.run("print(await pay(7))").stdout == "7\n"
    assert shop.ran == ["pay 7"]


def test_a_record_is_its_owner_s_alone_and_starts_afresh(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    for _ in range(2):
        functions = recorded(Toolset([Shop().pay]).functions, file, None)
        asyncio.run(functions["pay"].call((), {"amount": 1}))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text().splitlines()) == 1


def test_an_argument_error_is_replayed_as_one(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    for options in ((file, None), (None, file)):
        functions = recorded(Toolset([Shop().pay]).functions, *options)
        with pytest.raises(ArgumentError, match="pay: amount"):
            asyncio.run(functions["pay"].call((), {"amount": "much"}))


@pytest.mark.parametrize("text", [None, "{}\n", "[1}\n", '{"seq": 0\x00}\n'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "r").write_text(text)
    with pytest.raises(InvalidParams, match="record"):
        recorded(Toolset([Shop().pay]).functions, None, tmp_path / "r")


def test_sets_have_one_key_whatever_their_order(tmp_path: Path) -> None:
    def take(values: set[str]) -> int:
        return len(values)

    for options in ((tmp_path / "r", None), (None, tmp_path / "r")):
        functions = recorded(Toolset([take]).functions, *options)
        items = ["a", "b", "c", "d"] if options[0] else ["d", "c", "b", "a"]
        assert asyncio.run(functions["take"].call((), {"values": set(items)})) == 4
