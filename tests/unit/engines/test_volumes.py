"""What may be a volume: the operator's text is read strictly, and clients name nothing but names."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from agent_tools.engines.engine import SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.volumes import Volume, check_path, chosen, read_volumes, with_volumes
from agent_tools.errors import InvalidParams, SandboxStartError
from agent_tools.limits import GIB, MIB
from agent_tools.machine.guest_ids import GUEST_UIDS
from agent_tools.runtime.sandbox.sandbox_start import mounted
from agent_tools.sandbox.options import Options
from tests.doubles import ProcessEngine
from tests.nodes import engine_over


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    for name in ("data", "shared"):
        (tmp_path / name).mkdir()
    return str(tmp_path / "data"), str(tmp_path / "shared")


def test_text_a_list_and_a_mapping_are_read_alike(folders: tuple[str, str]) -> None:
    data, shared = folders
    expected = (Volume("data", data), Volume("shared", shared, True, 512 * MIB))
    for given in (
        f"data={data},shared={shared}:rw:512m",
        f"data={data}:ro, shared={shared}:rw:512m",
        [f"data={data}", f"shared={shared}:rw:512m"],
        {"data": data, "shared": f"{shared}:rw:512m"},
        {"data": Path(data), "shared": f"{shared}:rw:512m"},
        list(expected),
    ):
        assert read_volumes(given) == expected, given
    assert read_volumes(",".join(map(str, expected))) == expected
    assert read_volumes("") == ()
    assert read_volumes(f"shared={shared}:rw")[0].max_bytes == 10 * GIB
    assert read_volumes("lake=a-claim:rw") == (Volume("lake", "a-claim", True),)
    assert Options.read({"volumes": f"data={data}"}).volumes == expected[:1]


REFUSED = {
    "data=relative/path": "is no absolute path",
    "data=~/data": "is no absolute path",
    "data=/": "part of the system",
    "data=//": "part of the system",
    "data=/etc": "part of the system",
    "data=/etc/ssl": "part of the system",
    "data=/proc/1/root": "part of the system|cannot be read (Permission denied)",
    "data={tmp}/nul\0": "cannot be read",
    "data={tmp}/file/x": "does not exist",
    "data=/var/run/docker.sock": "part of the system",
    "data=/run": "part of the system",
    "data=/var/lib/docker/volumes": "belongs to the engine",
    "data=/home": "part of the system",
    "data={tmp}/missing": "does not exist",
    "data={tmp}/file": "is not a folder",
    "data={tmp}/link": "is a symbolic link",
    "data={tmp}/link/inner": "leads through a symbolic link, to .*/shared/inner",
    "data={tmp}/data/../shared": "has '..' in its path",
    "data={tmp}/served": "holds a socket ('any.sock'), through which code could leave",
    "data={tmp}": "holds a socket ('served/any.sock'), through which code could leave",
    "data={tmp}/data,data={tmp}/shared": "'data' twice",
    "Bad Name={tmp}/data": "is no name",
    "../up={tmp}/data": "is no name",
    "={tmp}/data": "is no name",
    "data": "write NAME=FOLDER",
    "data={tmp}/data:rx": "write NAME=FOLDER",
    "data={tmp}/data:rw:1g:more": "write NAME=FOLDER",
    "data={tmp}/data:rw:much": "is no size",
    "data={tmp}/data:rw:-1": "is no size",
    "data={tmp}/data:ro:1g": "a size is for a folder that code may write to",
    "data=claim:rw:1g": "a size is for a folder that code may write to",
    "data={tmp}/shared/inner,shared={tmp}/shared:rw": "overlap",
    "data={tmp}/shared,shared={tmp}/shared:rw": "overlap",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_one_is_refused_with_a_reason(
    given: str, folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "shared" / "inner").mkdir()
    (tmp_path / "link").symlink_to("shared")
    (tmp_path / "served").mkdir()
    monkeypatch.chdir(tmp_path / "served")  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("any.sock")
        listening.listen()
        with pytest.raises(InvalidParams, match=REFUSED[given].replace("(", r"\(").replace(")", r"\)")) as refusal:
            read_volumes(given.format(tmp=tmp_path))
    assert refusal.value.message.endswith((".", "volumes"))


def test_a_socket_that_code_left_in_one_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "db").mkdir()
    monkeypatch.chdir(tmp_path / "db")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("s")
    if os.getuid() == 0:
        os.chown("s", GUEST_UIDS[0], GUEST_UIDS[0])
    assert read_volumes(f"data={tmp_path}:rw")


@pytest.mark.needs_root(reason="only root can make files of others")
def test_a_socket_that_a_guest_serves_is_no_hindrance_and_one_of_an_account_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind("s")
        served.listen()
        os.chown("s", GUEST_UIDS[0], GUEST_UIDS[0])
        assert read_volumes(f"data={tmp_path}:rw")
        monkeypatch.setattr("agent_tools.machine.foreign_sockets.is_account", lambda uid: True)
        with pytest.raises(InvalidParams, match="holds a socket"):
            read_volumes(f"data={tmp_path}:rw")


@pytest.mark.parametrize("given", [7, {"data": 7}, [7], {7: "/srv"}, [["data", "/srv"]]])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(InvalidParams):
        read_volumes(given)


def test_folders_in_each_other_may_be_read(folders: tuple[str, str]) -> None:
    data, _ = folders
    Path(data, "inner").mkdir()
    assert len(read_volumes(f"data={data},inner={data}/inner")) == 2


def test_a_client_chooses_by_name_and_where_it_sees_it(folders: tuple[str, str]) -> None:
    known = read_volumes({"data": folders[0], "shared": f"{folders[1]}:rw"})
    assert chosen(known, ["shared"]) == known[1:]
    assert chosen(known, ["other", "/etc", "../data", ""]) == ()
    (moved,) = chosen(known, [check_path("data", "/mnt/my-data")])
    assert (moved.source, moved.target, moved.is_writable) == (folders[0], "/mnt/my-data", False)
    assert check_path("data", "/volumes/data") == "data"
    for path in ("/mnt/data", "/home/user", "/workspace", "/", "/mnt", "/mnt/../etc", "/mnt/a/b", "/volumes/other"):
        with pytest.raises(InvalidParams, match=re.escape(f"cannot be at {path!r}: give /volumes/data, or /mnt/NAME.")):
            check_path("data", path)
    for path in ("/mnt/a b", "/mnt/a\n", "mnt/a", "/opt/kernel", "/mnt/a,ro", "/mnt/a=b"):
        with pytest.raises(InvalidParams):
            check_path("data", path)


def test_a_model_is_told_of_them(folders: tuple[str, str]) -> None:
    known = read_volumes({"data": folders[0], "shared": f"{folders[1]}:rw:1g", "lake": "claim:rw"})
    assert with_volumes("Runs code.", known) == (
        "Runs code. Folders beside the working folder: /volumes/data (read-only), /volumes/shared (writable, 1 GiB), "
        "/volumes/lake (writable)."
    )
    assert with_volumes("Runs code.", ()) == "Runs code."


def test_a_guest_gets_the_group_of_a_folder_that_is_closed_to_others(folders: tuple[str, str]) -> None:
    data, shared = (Path(each) for each in folders)
    me = os.getuid(), os.getgid()
    mine, other, mapped = Guest(me, me), Guest((10_001,) * 2, (10_001,) * 2), Guest((0, 0), (10_001,) * 2)
    data.chmod(0o755)
    shared.chmod(0o770)
    assert Volume("data", str(data)).group_for(other) is None
    assert Volume("shared", str(shared), True).group_for(mine) is None
    group = 4_242 if os.getuid() == 0 else next((each for each in os.getgroups() if each not in (0, me[1])), 0)
    if group:
        os.chown(shared, -1, group)
        assert Volume("shared", str(shared), True).group_for(other) == group
    with pytest.raises(InvalidParams, match=r"closed to the user of sandboxes \(10001\).*chgrp GROUP .*; chmod 2770"):
        Volume("shared", str(shared), True).group_for(mapped)  # in whose user namespace the group is another
    with pytest.raises(InvalidParams, match="closed to the user of sandboxes"):
        Volume("data", str(data), True).group_for(other)
    assert Volume("lake", "claim", True).group_for(other) is None


@pytest.mark.parametrize("is_remote", [True, False])
def test_an_engine_elsewhere_has_only_volumes_that_it_knows_by_name(folders: tuple[str, str], is_remote: bool) -> None:
    guest = ProcessEngine(shares_files=not is_remote).guest()
    folder, claim = Volume("data", folders[0]), Volume("lake", "a-claim", True)
    assert mounted([claim], guest) == ((claim,), ())
    if is_remote:
        with pytest.raises(InvalidParams, match=r"the engine runs elsewhere\. Name a volume that it has: data=VOLUME"):
            mounted([folder], guest)
    else:
        assert mounted([folder], guest) == ((folder,), ())


def test_nodes_of_ray_have_no_volumes() -> None:
    volumes = (Volume("lake", "a-claim"),)
    with pytest.raises(SandboxStartError, match="Sandboxes on Ray have no volumes"):
        engine_over().start(SandboxSpec("none", None, None, Guest.own(), Isolation(), {}, volumes=volumes))
