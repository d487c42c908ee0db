"""What rows promise, in memory and in a database."""

from __future__ import annotations

from agent_tools.containers.records import ContainerFile, Upload
from agent_tools.containers.rows import MANY, Before, Rows


def upload(id_: str, owner: str = "me", size: int = 1, at: float = 1.0) -> Upload:
    return Upload(id=id_, owner=owner, created_at=at, filename="a", bytes=size, purpose="p")


def test_rows_are_added_found_changed_and_deleted(rows: Rows) -> None:
    rows.add(upload("a", at=1.0), upload("b", at=2.0))
    assert [row.id for row in rows.find(Upload, owner="me")] == ["a", "b"]
    assert rows.change(Upload, "a", filename="b")
    assert not rows.change(Upload, "c", filename="b")
    assert rows.get(Upload, "a") == Upload(**{**vars(upload("a")), "filename": "b"})
    assert rows.get(Upload, "a", owner="you") is None
    assert rows.get(Upload, "c") is None
    assert rows.delete(Upload, id="a") == 1
    assert rows.delete(Upload, id="a") == 0
    assert rows.find(ContainerFile) == []


def test_a_row_is_changed_only_as_it_was(rows: Rows) -> None:
    rows.add(upload("a"))
    assert not rows.change(Upload, "a", {"owner": "you"}, filename="b")
    assert rows.change(Upload, "a", {"owner": ["me", "you"], "bytes": 1}, owner="you")
    assert not rows.change(Upload, "a", {"owner": "me"}, owner="them")
    found = rows.get(Upload, "a")
    assert found
    assert (found.owner, found.filename) == ("you", "a")


def test_rows_are_counted_and_their_bytes_added_up(rows: Rows) -> None:
    rows.add(upload("a", size=2**40), upload("b", size=2), upload("c", "you"))
    assert rows.amount(Upload, owner="me") == (2, 2**40 + 2)
    assert rows.amount(Upload, owner=["me", "you"]) == (3, 2**40 + 3)
    assert rows.count(ContainerFile) == 0


def test_what_is_older_than_a_time_is_found_and_deleted(rows: Rows) -> None:
    rows.add(*(upload(f"u{n}", at=float(n)) for n in range(3)))
    assert [row.id for row in rows.find(Upload, created_at=Before(2.0))] == ["u0", "u1"]
    assert rows.delete(Upload, created_at=Before(1.0), owner="me") == 1
    assert rows.count(Upload) == 2


def test_many_are_found_at_once(rows: Rows) -> None:
    ids = [f"u{n}" for n in range(MANY + 1)]
    for id_ in ids[::250]:
        rows.add(upload(id_))
    assert [row.id for row in rows.get_all(Upload, ids, owner="me")] == ids[::250]
    assert rows.get_all(Upload, []) == []


def test_what_was_given_out_does_not_change_later(rows: Rows) -> None:
    rows.add(upload("a"))
    found = rows.get(Upload, "a")
    rows.change(Upload, "a", bytes=9)
    assert found == upload("a")
