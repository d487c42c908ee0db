"""Handles, paths and URIs as clients write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.errors import InvalidParams
from agent_tools.mcp.names import MAX_LEVELS, MAX_PATH_BYTES, read_handle, read_path, read_uri, uri_of

HANDLE = "cntr_" + "0a" * 24


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("a.csv", "a.csv"),
        ("./a//b/./c", "a/b/c"),
        ("/workspace/a.csv", "a.csv"),
        ("/mnt/data/d/a.csv", "d/a.csv"),
        ("-rf", "-rf"),
        ("数据 1.csv", "数据 1.csv"),
        ("a/" * (MAX_LEVELS - 1) + "b", "a/" * (MAX_LEVELS - 1) + "b"),
    ],
)
def test_a_path_is_relative_to_the_working_directory(given: str, path: str) -> None:
    assert read_path(given) == path


@pytest.mark.parametrize(
    "given",
    [
        *("", ".", "/", "..", "../a", "a/../../b", "/etc/passwd", "/workspacex/a", "/workspace/../a", "/mnt/data/"),
        *(
            "a\0b",
            "a\nb",
            "\x7f",
            "\ud800",
            "a" * (MAX_PATH_BYTES + 1),
            "a/" * MAX_LEVELS + "b",
            "/workspace//etc/../..",
        ),
    ],
)
def test_a_path_that_leads_out_or_is_no_name_is_refused(given: str) -> None:
    with pytest.raises(InvalidParams, match="path"):
        read_path(given)


@pytest.mark.parametrize(
    "given", ["", "x", "cntr_", "cntr_123", "cntr_" + "g" * 48, HANDLE + "0", f"{HANDLE}\n", f" {HANDLE}"]
)
def test_what_is_no_handle_is_refused(given: str) -> None:
    with pytest.raises(InvalidParams, match="not a handle"):
        read_handle(given)
    with pytest.raises(InvalidParams):
        read_uri(f"sandbox://{given}/a")


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1), min_size=1)
)
def test_every_path_has_a_uri_that_leads_back_to_it(parts: list[str]) -> None:
    try:
        path = read_path("/".join(parts))
    except InvalidParams:
        return
    uri = uri_of(HANDLE, path)
    assert uri.isascii()
    assert read_uri(uri) == (HANDLE, path)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "sandbox://",
        f"sandbox://{HANDLE}",
        f"sandbox://{HANDLE}/",
        f"http://{HANDLE}/a",
        f"sandbox://{HANDLE}/%2e%2e/a",
    ],
)
def test_what_is_no_uri_of_a_file_is_refused(uri: str) -> None:
    with pytest.raises(InvalidParams):
        read_uri(uri)
