"""Conversations known again, and those that are not to be taken for each other."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_tools.containers.failures import RowsAway
from agent_tools.containers.records import Record
from agent_tools.containers.rows import Before
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations import recognised
from agent_tools.gateway.conversations.fingerprint import (
    MAX_FINGERPRINTS,
    ConversationFingerprint,
    ConversationIdentity,
)
from agent_tools.gateway.conversations.recognised import (
    MAX_SESSION,
    MAX_UNNOTED,
    FoundContainer,
    RecognisedConversations,
)
from agent_tools.gateway.store.records import StoredFingerprint
from agent_tools.gateway.store.store import Store
from agent_tools.limits import MIB

ME = ConversationIdentity("me")
LOST = FoundContainer(was_lost=True)
CALL = {"type": "function_call", "id": "fc_1", "call_id": "weather:0", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "weather:0", "output": "Rain."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, **more}


@pytest.fixture
def store(work_dir: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{work_dir}/s.db")
    yield store
    store.close()


class Talk:
    """Requests of one sender, and answers to them."""

    def __init__(self, store: Store, identity: ConversationIdentity = ME, **options: Any) -> None:
        self.known = RecognisedConversations(GatewayConfig("http://u", **options), store)
        self.identity = identity

    def find(self, *entries: dict[str, Any], **more: Any) -> FoundContainer:
        return self.known.find(self.of(*entries, **more))

    def answer(self, entries: list[dict[str, Any]], answer: list[dict[str, Any]], container_id: str) -> None:
        self.known.record(self.of(*entries), answer, container_id)

    def of(self, *entries: dict[str, Any], **more: Any) -> ConversationFingerprint:
        return self.known.of(self.identity, entries, **more)


START = [user("How many?")]
ANSWER = [said("Ten.", id="msg_1")]
RESENT = [*START, said("Ten.")]


def test_a_conversation_is_known_by_all_that_was_said(store: Store) -> None:
    talk = Talk(store)
    assert talk.find(*START) == FoundContainer()
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(*RESENT, user("And now?")) == FoundContainer("cntr_a")
    talk.answer([*RESENT, user("And now?")], [said("Eleven.")], "cntr_a")
    assert talk.find(*RESENT, user("And now?"), said("Eleven."), user("More?")) == FoundContainer("cntr_a")


def test_a_session_that_goes_on_is_not_forgotten_by_its_first_day(store: Store) -> None:
    talk = Talk(store, ConversationIdentity("me", session="chat 1"))
    talk.answer(START, ANSWER, "cntr_a")
    for row in store.find(StoredFingerprint):
        store.change(StoredFingerprint, row.id, created_at=1.0)
    talk.answer([*RESENT, user("And now?")], [said("Eleven.", id="msg_2")], "cntr_a")
    assert store.delete(StoredFingerprint, created_at=Before(1_000.0)) > 0  # of the first answer alone
    assert talk.find(user("Something else")) == FoundContainer("cntr_a")


def test_it_is_known_over_answers_that_were_made_elsewhere(store: Store) -> None:
    talk = Talk(store)
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(*RESENT, user("Hi."), said("Hello, without tools."), user("And now?")) == FoundContainer("cntr_a")


@pytest.mark.parametrize(
    "other", [ConversationIdentity("them"), replace(ME, user="bob"), replace(ME, instructions="You talk to Bob.")]
)
def test_another_key_user_or_instruction_is_another_conversation(store: Store, other: ConversationIdentity) -> None:
    Talk(store).answer(START, ANSWER, "cntr_a")
    assert Talk(store, other).find(*RESENT, user("And now?")) == FoundContainer()


def test_no_other_key_finds_anything(store: Store) -> None:
    mine, theirs = (ConversationIdentity(owner, session="chat 1", cache_key="k") for owner in ("me", "them"))
    Talk(store, mine).answer(START, [*ANSWER, CALL], "cntr_a")
    assert Talk(store, theirs).find(*START, *ANSWER, CALL, RESULT) == FoundContainer()


def test_what_has_no_answer_yet_is_a_new_conversation(store: Store) -> None:
    talk = Talk(store)
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(*START) == FoundContainer()


def test_two_that_are_the_same_word_for_word_are_told_apart_by_nobody(store: Store) -> None:
    talk = Talk(store)
    talk.answer(START, ANSWER, "cntr_a")
    talk.answer(START, [said("Ten.", id="msg_2")], "cntr_b")
    for _ in range(2):
        assert talk.find(*RESENT, user("And now?")) == LOST
    talk.answer(START, [said("Ten.", id="msg_3")], "cntr_c")
    assert talk.find(*RESENT, user("And now?")) == LOST


def test_one_without_a_container_is_not_taken_for_one_with_one(store: Store) -> None:
    talk = Talk(store)
    talk.answer(START, ANSWER, "")
    assert talk.find(*RESENT, user("And now?")) == FoundContainer()
    talk.answer(START, [said("Ten.")], "cntr_b")
    assert talk.find(*RESENT, user("And now?")) == LOST


def test_of_two_branches_the_first_keeps_the_container_and_the_same_request_again_gets_it_too(store: Store) -> None:
    talk = Talk(store)
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(*RESENT, user("The mean?")) == FoundContainer("cntr_a")
    assert talk.find(*RESENT, user("The sum?")) == LOST
    talk.answer([*RESENT, user("The mean?")], [said("Five.")], "cntr_a")
    assert talk.find(*RESENT, user("The mean?")) == FoundContainer("cntr_a")
    assert talk.find(*RESENT, user("The sum?")) == LOST
    assert talk.find(*RESENT, user("The mean?"), said("Five."), user("Go on.")) == FoundContainer("cntr_a")


def test_a_branch_is_kept_apart_also_from_one_that_is_known_by_ids(store: Store) -> None:
    talk = Talk(store)
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(*START, *ANSWER, user("The mean?")) == FoundContainer("cntr_a")  # by the item's id
    assert talk.find(*RESENT, user("The sum?")) == LOST
    assert talk.find(*START, *ANSWER, user("The sum?")) == FoundContainer("cntr_a")


def test_the_newest_item_decides(store: Store) -> None:
    talk = Talk(store, match_text=False)
    talk.answer(START, [said("Ten.", id="msg_1")], "cntr_a")
    talk.answer(START, [said("Ten.", id="msg_2")], "cntr_b")
    assert talk.find(said("", id="msg_1"), said("", id="msg_2"), user("?")) == FoundContainer("cntr_b")
    assert talk.find(said("", id="msg_2"), said("", id="msg_1"), user("?")) == FoundContainer("cntr_a")


def test_a_call_is_known_by_its_id_name_arguments_and_opening(store: Store) -> None:
    talk = Talk(store, match_text=False)
    talk.answer(START, [CALL], "cntr_a")
    call = {key: value for key, value in CALL.items() if key != "id"}
    assert talk.find(*START, said("I look."), call, RESULT) == FoundContainer("cntr_a")
    for other in ({**call, "arguments": '{"city": "Ulm"}'}, {**call, "call_id": "weather:1"}):
        assert talk.find(*START, other, RESULT) == FoundContainer()
    assert talk.find(user("Hello?"), call, RESULT) == FoundContainer()
    talk.answer(START, [{**CALL, "id": "fc_2"}], "cntr_b")  # a server that numbers its calls
    assert talk.find(*START, call, RESULT) == LOST


def test_a_session_is_a_conversation_also_when_its_container_is_replaced(store: Store) -> None:
    talk = Talk(store, replace(ME, session="x-chat 1"))
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(user("Something else.")) == FoundContainer("cntr_a")
    talk.answer([user("Something else.")], [said("Yes.")], "cntr_b")
    talk.answer([user("More.")], [said("Yes.")], "")
    assert talk.find(user("And?")) == FoundContainer("cntr_b")
    assert Talk(store, replace(ME, session="x-chat 2")).find(user("And?")) == FoundContainer()


def test_a_cache_key_tells_conversations_apart_that_are_the_same_word_for_word(store: Store) -> None:
    one, other = (Talk(store, replace(ME, cache_key=key)) for key in ("chat 1", "chat 2"))
    one.answer(START, ANSWER, "cntr_a")
    other.answer(START, [said("Ten.", id="msg_2")], "cntr_b")
    assert one.find(*RESENT, user("And now?")) == FoundContainer("cntr_a")
    assert other.find(*RESENT, user("And now?")) == FoundContainer("cntr_b")
    assert Talk(store).find(*RESENT, user("And now?")) == FoundContainer()


def test_under_a_cache_key_branches_share(store: Store) -> None:
    talk = Talk(store, replace(ME, cache_key="chat"))
    talk.answer(START, ANSWER, "cntr_a")
    for said_next in ("The mean?", "The sum?"):
        assert talk.find(*RESENT, user(said_next)) == FoundContainer("cntr_a")


def test_a_cache_key_of_several_conversations_is_nobodys(store: Store) -> None:
    talk = Talk(store, replace(ME, cache_key="app"))
    talk.find(*START)
    talk.answer(START, ANSWER, "cntr_a")
    assert talk.find(*START) == FoundContainer()  # another conversation begins alike
    assert talk.find(*RESENT, user("The mean?")) == FoundContainer("cntr_a")  # by its text, which is still its own
    assert talk.find(*RESENT, user("The sum?")) == LOST
    talk.answer(START, [said("Twelve.")], "cntr_b")
    assert talk.find(*START, said("Twelve."), user("And now?")) == FoundContainer("cntr_b")


def test_examples_that_an_application_sends_with_each_conversation_are_not_answers(store: Store) -> None:
    talk = Talk(store, replace(ME, cache_key="app"))
    examples = [user("2 + 2?"), said("4")]
    assert talk.find(*examples, *START) == FoundContainer()
    talk.answer([*examples, *START], ANSWER, "cntr_a")
    assert talk.find(*examples, user("Something else.")) == FoundContainer()
    talk.answer([*examples, user("Something else.")], [], "cntr_b")  # it failed without a word
    assert talk.find(*examples, *START) == FoundContainer()
    assert talk.find(*examples, *RESENT, user("And now?")) == FoundContainer("cntr_a")


def test_a_cache_key_that_began_twice_at_once_is_nobodys(store: Store) -> None:
    talk = Talk(store, replace(ME, cache_key="app"))
    assert talk.find(*START) == talk.find(*START) == FoundContainer()
    talk.answer(START, [said("Ten.")], "cntr_a")
    talk.answer(START, [said("Twelve.")], "cntr_b")
    assert talk.find(*START, said("Ten."), user("The mean?")) == FoundContainer("cntr_a")
    assert talk.find(*START, said("Ten."), user("The sum?")) == LOST


def test_a_cache_key_that_began_twice_at_once_without_code_is_nobodys_either(store: Store) -> None:
    talk = Talk(store, replace(ME, cache_key="app"))
    assert talk.find(*START) == talk.find(*START) == FoundContainer()
    talk.answer(START, [said("Ten.")], "")
    talk.answer(START, [said("Twelve.")], "")
    talk.answer([*START, said("Ten."), user("The mean?")], [said("Five.")], "cntr_a")
    assert talk.find(*START, said("Twelve."), user("The sum?")).container_id == ""


def test_a_cache_key_goes_on_with_a_new_container(store: Store) -> None:
    talk = Talk(store, replace(ME, cache_key="k"))
    talk.answer(START, ANSWER, "cntr_a")
    longer = [*RESENT, user("And now?")]
    talk.answer(longer, [said("Yes.")], "")
    assert talk.find(*RESENT, user("More?")) == FoundContainer("cntr_a")
    talk.answer(longer, [said("No.")], "cntr_b")
    assert talk.find(*RESENT, user("Still more?")) == FoundContainer("cntr_b")


@pytest.mark.parametrize("switch", [{"match_text": False}, {}])
def test_text_and_cache_key_can_be_left_out(store: Store, switch: dict[str, bool]) -> None:
    talk = Talk(store, replace(ME, cache_key="k"), **switch)
    talk.known.record(talk.of(*START, is_whole=bool(switch)), ANSWER, "cntr_a")
    assert talk.find(*RESENT, user("And now?")) == FoundContainer()


def test_a_header_names_the_session() -> None:
    known = RecognisedConversations(GatewayConfig("http://u", session_headers=("X-Chat", "x-other")), None)  # type: ignore[arg-type]
    assert known.session({"x-chat": "1"}) == known.session({}) == ""
    assert known.session({"x-other": "2", "X-Chat": "1"}) == "x-chat 1"
    assert len(known.session({"x-other": "a" * 1_000})) == len("x-other ") + MAX_SESSION


def test_fingerprints_are_bounded_and_hold_nothing_that_was_said(store: Store) -> None:
    talk = Talk(store, replace(ME, session="secret", cache_key="secret"))
    many = [said("secret", id=f"msg_secret_{n}") for n in range(200)]
    talk.answer([user("secret")], many, "cntr_a")
    rows = store.find(StoredFingerprint)
    assert len(rows) == MAX_FINGERPRINTS + 3
    assert "secret" not in str(rows)
    assert talk.find(many[-1]) == FoundContainer("cntr_a")
    assert Talk(store).find(many[0]) == FoundContainer()


class Refusing(Store):
    """A store that takes no fingerprints while `is_full`."""

    is_full = False

    def add(self, *records: Any) -> None:
        if self.is_full:
            raise RowsAway
        super().add(*records)


def test_what_the_store_refuses_is_noted_later_and_nobody_is_answered_as_if_it_were_not(work_dir: Path) -> None:
    store = Refusing(f"sqlite:///{work_dir}/r.db")
    talk = Talk(store)
    store.is_full = True
    talk.answer(START, ANSWER, "cntr_1")
    assert store.find(StoredFingerprint) == []
    with pytest.raises(RowsAway):
        talk.find(*RESENT, user("And now?"))
    with pytest.raises(RowsAway):
        talk.find(*START, *ANSWER, user("And now?"))
    assert talk.find(user("Something else.")) == FoundContainer()
    store.is_full = False
    assert talk.find(*RESENT, user("And now?")) == FoundContainer("cntr_1")
    store.close()


def test_a_sweep_notes_what_was_refused(work_dir: Path) -> None:
    store = Refusing(f"sqlite:///{work_dir}/r.db")
    talk = Talk(store)
    store.is_full = True
    talk.answer(START, ANSWER, "cntr_1")
    with pytest.raises(RowsAway):
        talk.known.record_again()
    store.is_full = False
    talk.known.record_again()
    assert Talk(store).find(*RESENT, user("And now?")) == FoundContainer("cntr_1")
    store.close()


def test_so_many_answers_wait_for_the_store_and_the_oldest_is_given_up_with_a_word(
    work_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Refusing(f"sqlite:///{work_dir}/r.db")
    talk = Talk(store)
    store.is_full = True
    for number in range(MAX_UNNOTED + 1):
        talk.answer([user(str(number))], [said("Ok.")], f"cntr_{number}")
    assert len(talk.known._unnoted) == MAX_UNNOTED
    assert "will not be found again" in caplog.text
    store.close()


def test_answers_that_wait_for_the_store_keep_no_text(work_dir: Path) -> None:
    store = Refusing(f"sqlite:///{work_dir}/r.db")
    talk = Talk(store, replace(ME, cache_key="k"))
    store.is_full = True
    tracemalloc.start()
    try:
        for number in range(8):
            talk.answer([user(f"{number}{'x' * MIB}")], [said("Ok.")], f"cntr_{number}")
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
    store.is_full = False
    talk.known.record_again()
    assert talk.known.find(talk.known.of(talk.identity, [user(f"7{'x' * MIB}"), said("Ok.")])).container_id == "cntr_7"
    store.close()


class Slow(Store):
    """A database that takes no fingerprint before it is let."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.is_asked, self.answers_now = threading.Event(), threading.Event()

    def add_if_new(self, *records: Record) -> bool:
        self.is_asked.set()
        assert self.answers_now.wait(60)
        return super().add_if_new(*records)


def test_only_who_asks_for_an_answer_waits_while_it_is_noted(work_dir: Path) -> None:
    store = Slow(f"sqlite:///{work_dir}/w.db")
    talk = Talk(store)
    with ThreadPoolExecutor(2) as pool:
        noting = pool.submit(talk.answer, START, ANSWER, "cntr_1")
        assert store.is_asked.wait(60)
        assert talk.find(user("Something else.")) == FoundContainer()
        asking = pool.submit(talk.find, *START, *ANSWER, user("And now?"))
        assert not noting.done()
        assert not asking.done()
        store.answers_now.set()
        assert asking.result(60) == FoundContainer("cntr_1")
    store.close()


def test_who_waits_for_a_database_that_does_not_answer_is_told(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognised, "NOTE_SECONDS", 0.05)
    store = Slow(f"sqlite:///{work_dir}/w.db")
    talk = Talk(store)
    with ThreadPoolExecutor(1) as pool:
        noting = pool.submit(talk.answer, START, ANSWER, "cntr_1")
        assert store.is_asked.wait(60)
        with pytest.raises(RowsAway, match="does not answer"):
            talk.find(*START, *ANSWER, user("And now?"))
        store.answers_now.set()
        noting.result(60)
    store.close()
