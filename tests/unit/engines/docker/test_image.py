import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

import agent_tools
from agent_tools.engines.context import context_files, tag_for, validated
from agent_tools.engines.docker import image
from agent_tools.engines.docker.image import DEBIAN_BASE, REGISTRY_BASE, Images, ensure, ensure_base, preparing
from agent_tools.engines.package_data import shipped
from agent_tools.engines.recipe import FLAVOURS, Flavour, Recipe, RecipeLike
from agent_tools.errors import EngineError, EngineUnavailable, ImageBuildError, InvalidParams

OTHER_BASE = "registry.example/python:3.13"


class FolderEngine:
    """As much of an engine as images need. Images are files of a folder, so that processes share them."""

    def __init__(self, folder: Path, registry: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.registry = registry
        self.pulled: list[str] = []

    def has_image(self, tag: str) -> bool:
        return self._file(tag).exists()

    def image_facts(self, tag: str) -> dict[str, object]:
        return {"Id": "sha256:1d", "RepoDigests": [f"python@sha256:{tag}"]}

    def pull(self, tag: str) -> Iterator[str]:
        self.pulled.append(tag)
        yield "Pulling from library"
        if tag not in self.registry:
            raise EngineError("no route to the registry")
        self._file(tag).touch()

    def build(self, context: BinaryIO, tag: str, arguments: dict[str, str]) -> Iterator[str]:
        self.note(f"build on {arguments['BASE_IMAGE']}")
        yield "Step 1\n\nStep 2\n"
        self._file(tag).touch()

    def prune_build_stage(self, label: str) -> None:
        self.note(f"prune {label}")

    def add(self, *tags: str) -> None:
        for tag in tags:
            self._file(tag).touch()

    def note(self, text: str) -> None:
        with open(self.folder / "notes", "a") as notes:
            notes.write(f"{text}\n")

    def notes(self) -> str:
        path = self.folder / "notes"
        return path.read_text() if path.exists() else ""

    def _file(self, tag: str) -> Path:
        return self.folder / quote(tag, safe="")


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No lock, base image, certificate or index of the machine's."""
    for name in ("BASE_IMAGE", "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AGENT_TOOLS_BASE_IMAGE", raising=False)
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(image.settings, "builds_dir", lambda: tmp_path / "builds")
    return tmp_path / "run" / f"agent_tools-{os.getuid()}"


@pytest.fixture
def engine(tmp_path: Path) -> FolderEngine:
    (tmp_path / "images").mkdir()
    return FolderEngine(tmp_path / "images")


# -- what the image is made of ----------------------------------------------------------------------------------------


def test_the_context_has_all_that_is_shipped() -> None:
    names = set(context_files())
    assert {"Dockerfile", "requirements.lock", "font_fallback.py", "matplotlibrc"} <= names
    for folder, pattern in (("guest", "*.py"), ("fonts", "*")):
        assert {f"{folder}/{path.name}" for path in shipped(folder).glob(pattern)} <= names
    assert {"guest/pid1/init.py", "guest/startup.py", "fonts/DroidSansFallbackFull.ttf"} <= names


@pytest.mark.parametrize("recipe", [[], ["polars"], *(Recipe(flavour=flavour) for flavour in FLAVOURS)], ids=str)
def test_the_context_has_all_that_the_dockerfile_copies(recipe: RecipeLike) -> None:
    context = context_files(recipe)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", context["Dockerfile"].decode(), re.MULTILINE)
    tops = {name.split("/")[0] for name in context} | {"ca-bundle.crt"}
    assert copied
    assert {name for line in copied for name in line.split()} <= tops


def test_further_packages_are_in_the_context() -> None:
    assert context_files(["polars==1.0.0", "duckdb"])["extra-requirements.txt"] == b"duckdb\npolars==1.0.0\n"
    assert context_files(Recipe(debian_packages=("jq", "graphviz")))["debian-packages.txt"] == b"graphviz\njq\n"
    assert "extra-requirements.txt" not in context_files()


@pytest.mark.parametrize("flavour", ["full", "agent"])
def test_a_flavour_is_a_layer_with_its_own_lock(flavour: Flavour) -> None:
    context = context_files(Recipe(flavour=flavour))
    assert context["below"].decode().strip() == tag_for()
    assert b"--hash=sha256:" in context["extra-requirements.txt"]


def test_the_flavour_for_documents_is_a_layer_on_full_with_pinned_packages_of_npm() -> None:
    context = context_files(Recipe(flavour="office"))
    assert context["below"].decode().strip() == tag_for(Recipe(flavour="full"))
    lines = [line.split() for line in context["npm-packages.txt"].decode().splitlines()]
    assert {"docx", "pptxgenjs"} <= {name for name, _, _ in lines}
    assert all(re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", digest) for _, _, digest in lines)
    assert context_files(Recipe(flavour="full"))["npm-packages.txt"] == b""
    whole = context_files(Recipe(debian_packages=("jq",), flavour="office"))
    assert set(context_files(Recipe(flavour="full"))["debian-packages.txt"].split()) <= set(
        whole["debian-packages.txt"].split()
    )
    assert whole["npm-packages.txt"] == b""


def test_the_newest_stack_stands_alone_with_another_lock() -> None:
    lean, newest = context_files(), context_files(Recipe(flavour="newest"))
    assert {name for name in lean if lean[name] != newest[name]} == {"requirements.lock"}


def test_further_packages_come_on_top_of_the_flavour() -> None:
    context = context_files(Recipe(("polars",), flavour="agent"))
    assert context["below"].decode().strip() == tag_for(Recipe(flavour="agent"))
    assert (context["extra-requirements.txt"], context["debian-packages.txt"]) == (b"polars\n", b"")


def test_the_topmost_list_of_debian_packages_is_whole() -> None:
    """dpkg's list of what is installed is one file, and the topmost layer's is seen."""
    context = context_files(Recipe(debian_packages=("graphviz",), flavour="agent"))
    names = context["debian-packages.txt"].decode().split()
    assert {"graphviz", *context_files(Recipe(flavour="agent"))["debian-packages.txt"].decode().split()} == set(names)


def test_the_tag_is_stable() -> None:
    assert re.fullmatch(r"agent-tools:[0-9a-f]{16}", tag_for())
    assert tag_for() == tag_for(())
    assert tag_for(["a", "b"]) == tag_for(["b", "a", "b"])


def test_other_packages_make_another_tag() -> None:
    tags = [tag_for(packages) for packages in ([], ["a"], ["b"], ["a", "b"], ["a==1"], ["a==2"], ["ab"])]
    tags += [tag_for(Recipe(flavour=flavour)) for flavour in FLAVOURS[1:]]
    tags += [tag_for(Recipe(debian_packages=names)) for names in (("aa",), ("bb",), ("aa", "bb"))]
    tags += [tag_for(Recipe(("aa",), flavour="full"))]
    assert len(set(tags)) == len(tags)


def test_the_tag_does_not_depend_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tag_for()
    (tmp_path / "ca.crt").write_text("certificate")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert tag_for() == before


@pytest.mark.parametrize(
    ("packages", "lines"),
    [
        ([], []),
        (["polars"], ["polars"]),
        (["polars == 1.0.0"], ["polars==1.0.0"]),
        (["b", "a", "b"], ["a", "b"]),
        (("pandas[excel]>=2,<3",), ["pandas[excel]<3,>=2"]),
        (["x; python_version < '3.14'"], ['x; python_version < "3.14"']),
        (
            ["x[b,a]~=1.0,!=2; os_name == 'a b' or extra in 'd*'"],
            ['x[a,b]!=2,~=1.0; os_name == "a b" or extra in "d*"'],
        ),
        (["x===1!2.0+local.1", "y>=1.dev0"], ["x===1!2.0+local.1", "y>=1.dev0"]),
    ],
    ids=str,
)
def test_packages_are_requirements(packages: list[str], lines: list[str]) -> None:
    assert validated(packages) == lines


@pytest.mark.parametrize(
    "entry",
    [
        *("", " ", "-r requirements.txt", "--index-url https://evil.example", "-e .", "./local", "/tmp/x.whl", ".."),
        *("https://evil.example/x.whl", "git+https://evil.example/x", "x @ https://evil.example/x.whl"),
        *("x @ file:///etc", "polars\n--index-url https://evil.example", "a b", "a==", "a\0", "# comment"),
        r"x; os_name == 'a\n--extra-index-url=https://evil.example/simple\n#'",
        *(r"x; os_name == 'a\x0b'", r"x; os_name == 'a\u2028-e .'", r"x; os_name == 'a\x00'", "x; os_name == 'é'"),
        *(r"""x; os_name == 'a\x27b\x22'""", "x; os_name == 'a #b'", "x; os_name == '${HOME}'", r"x; os_name == 'a\\'"),
        *("x===--pre", "x === -e", "x; os_name == 'a --pre'", "x; os_name == '--pre'"),
        *(None, 3, b"polars"),
    ],
    ids=repr,
)
def test_anything_but_a_plain_requirement_is_refused(entry: object) -> None:
    with pytest.raises(InvalidParams, match="packages has"):
        validated(["polars", entry])  # type: ignore[list-item]


@given(st.text(alphabet="a'\"\\\\n\nrx0127u8# -=;$", max_size=12))
def test_an_entry_is_one_line_or_refused(text: str) -> None:
    for entry in (f"x; os_name == '{text}'", f'x; os_name == "{text}"', f"x {text}"):
        with contextlib.suppress(InvalidParams):
            (line,) = validated([entry])
            assert line.splitlines() == [line]
            assert "#" not in line
            assert Requirement(line) == Requirement(entry)


def test_one_string_is_not_a_list_of_packages() -> None:
    with pytest.raises(InvalidParams, match="is one string"):
        validated("polars")


# -- ensure -----------------------------------------------------------------------------------------------------------


def test_an_image_that_is_there_is_not_built(engine: FolderEngine) -> None:
    engine.add(tag_for())
    assert ensure(engine) == tag_for()  # type: ignore[arg-type]
    assert engine.notes() == ""


def test_a_missing_image_is_built_and_its_build_stage_removed(engine: FolderEngine) -> None:
    engine.add(REGISTRY_BASE, tag_for())
    said: list[str] = []
    assert ensure(engine, ["polars"], said.append) == tag_for(["polars"])  # type: ignore[arg-type]
    assert engine.has_image(tag_for(["polars"]))
    assert engine.notes() == f"build on {REGISTRY_BASE}\nprune agent_tools.stage=builder\n"
    assert said[0].startswith(f"Building {tag_for(['polars'])} on {REGISTRY_BASE}")
    assert said[1:] == ["Step 1", "Step 2", f"Built {tag_for(['polars'])}"]


def test_packages_are_added_to_the_image_that_is_there_or_built_first(engine: FolderEngine) -> None:
    stacks: list[str | None] = []
    build = engine.build

    def note_stack(context: BinaryIO, tag: str, arguments: dict[str, str]) -> Iterator[str]:
        stacks.append(arguments.get("STACK_IMAGE"))
        return build(context, tag, arguments)

    engine.build = note_stack  # type: ignore[method-assign]
    engine.add(REGISTRY_BASE)
    for recipe in (["polars"], ["duckdb"], Recipe(("polars",), flavour="agent")):
        ensure(engine, recipe)  # type: ignore[arg-type]
    assert stacks == [None, tag_for(), tag_for(), tag_for(), tag_for(Recipe(flavour="agent"))]


def test_another_stack_makes_another_tag_for_the_same_packages() -> None:
    on_lean, on_newest = context_files(["polars"]), context_files(Recipe(("polars",), flavour="newest"))
    assert on_lean["below"].decode().strip() == tag_for()
    assert {name for name in on_lean if on_lean[name] != on_newest[name]} == {"below"}


def test_another_installation_is_not_built_under_the_tag_of_the_one_that_began(
    engine: FolderEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.add(REGISTRY_BASE)
    tag_for()
    changed = {**context_files(), "Dockerfile": b"FROM other"}
    monkeypatch.setattr(image, "context_files", lambda _: changed)
    with pytest.raises(ImageBuildError, match="was changed here since this process began"):
        image.build(engine)  # type: ignore[arg-type]
    assert not engine.has_image(tag_for())


def test_the_index_of_the_machine_is_passed_to_the_build(engine: FolderEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    engine.add(REGISTRY_BASE)
    engine.build = lambda context, tag, arguments: iter([seen.update(arguments) or ""])  # type: ignore[method-assign]
    image.build(engine)  # type: ignore[arg-type]
    assert seen["PIP_INDEX_URL"] == "https://mirror.example/simple"


def test_the_build_is_told_what_the_image_is_built_on(engine: FolderEngine) -> None:
    seen: dict[str, str] = {}
    engine.add(REGISTRY_BASE)
    engine.build = lambda context, tag, arguments: iter([seen.update(arguments) or ""])  # type: ignore[method-assign]
    image.build(engine)  # type: ignore[arg-type]
    assert seen == {
        "BASE_IMAGE": REGISTRY_BASE,
        "BASE_NAME": REGISTRY_BASE,
        "BASE_DIGEST": f"sha256:{REGISTRY_BASE}",
        "VERSION": agent_tools.__version__,
    }


def test_the_last_line_of_progress_is_known_while_an_image_is_made(engine: FolderEngine) -> None:
    engine.add(REGISTRY_BASE)
    seen: list[str] = []
    ensure(engine, progress=lambda _: seen.append(preparing()))  # type: ignore[arg-type]
    assert seen[1:] == ["Step 1", "Step 2", f"Built {tag_for()}"]
    assert preparing() == ""


ASKS = """
input()
import sys
from pathlib import Path
from urllib.parse import quote
from agent_tools.engines.docker.image import ensure

class Engine:  # it cannot build
    def has_image(self, tag):
        return (Path(sys.argv[1]) / quote(tag, safe="")).exists()

print(ensure(Engine(), progress=lambda line: print(line, flush=True)))
"""


def test_two_processes_that_ask_at_once_build_once(engine: FolderEngine) -> None:
    engine.add(REGISTRY_BASE)
    build = engine.build
    with subprocess.Popen(
        [sys.executable, "-c", ASKS, engine.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin
        assert other.stdout
        waits = other.stdout.readline

        def build_in_company(context: BinaryIO, tag: str, arguments: dict[str, str]) -> Iterator[str]:
            print(file=other.stdin, flush=True)
            engine.note(waits())
            yield from build(context, tag, arguments)

        engine.build = build_in_company  # type: ignore[method-assign]
        assert ensure(engine) == tag_for()  # type: ignore[arg-type]
        assert other.stdout.read() == f"{tag_for()}\n"
    assert engine.notes().startswith("Another process is building the image; waiting for it\n")
    assert engine.notes().count("build on") == 1
    assert other.returncode == 0


def test_a_build_on_another_engine_is_not_waited_for(engine: FolderEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with image.only_build(said.append):
        monkeypatch.setenv("DOCKER_HOST", "tcp://other:2376")
        with image.only_build(said.append):
            assert not said


def test_builds_go_one_after_the_other_so_that_none_removes_anothers_stages(engine: FolderEngine) -> None:
    engine.add(REGISTRY_BASE, tag_for())
    build = engine.build
    going: list[str] = []
    others: list[str] = []

    def build_alone(context: BinaryIO, tag: str, arguments: dict[str, str]) -> Iterator[str]:
        others.extend(going)
        going.append(tag)
        if tag == tag_for(["polars"]):
            waiting.start()
            waiting.join(0.2)  # it cannot begin
        yield from build(context, tag, arguments)
        going.remove(tag)

    waiting = threading.Thread(target=image.build, args=(engine, ["duckdb"]))
    engine.build = build_alone  # type: ignore[method-assign]
    image.build(engine, ["polars"])  # type: ignore[arg-type]
    waiting.join(30)
    assert others == []
    assert engine.notes().count("prune") == 2


@pytest.mark.parametrize(
    "words", ["layer does not exist", "failed to get digest", "invalid from flag value debian: No such image: "]
)
def test_a_build_whose_layer_the_engine_lost_is_run_once_more(engine: FolderEngine, words: str) -> None:
    engine.add(REGISTRY_BASE, tag_for())
    build = engine.build
    runs: list[str] = []

    def lose_a_layer(context: BinaryIO, tag: str, arguments: dict[str, str]) -> Iterator[str]:
        runs.append(tag)
        if len(runs) == 1:
            raise ImageBuildError(f"The image could not be built: {words}sha256:1", "")
        return build(context, tag, arguments)

    engine.build = lose_a_layer  # type: ignore[method-assign]
    image.build(engine, ["polars"])  # type: ignore[arg-type]
    assert len(runs) == 2


def test_a_lock_below_a_base_that_is_a_link_is_not_written(engine: FolderEngine, run_dir: Path, tmp_path: Path) -> None:
    engine.add(REGISTRY_BASE)
    lock = tmp_path / f"{tag_for().replace(':', '-')}.lock"
    lock.write_text("precious")
    run_dir.parent.mkdir()
    run_dir.symlink_to(tmp_path)
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        ensure(engine)  # type: ignore[arg-type]
    assert lock.read_text() == "precious"


# -- ensure_base ------------------------------------------------------------------------------------------------------

BASES = {
    "given and there": (OTHER_BASE, [OTHER_BASE, REGISTRY_BASE], (), OTHER_BASE, []),
    "given and pulled": (OTHER_BASE, [REGISTRY_BASE, DEBIAN_BASE], (OTHER_BASE,), OTHER_BASE, [OTHER_BASE]),
    "the registry's is there": ("", [DEBIAN_BASE, REGISTRY_BASE], (), REGISTRY_BASE, []),
    "the one from packages is there": ("", [DEBIAN_BASE], (REGISTRY_BASE,), DEBIAN_BASE, []),
    "pulled": ("", [], (REGISTRY_BASE,), REGISTRY_BASE, [REGISTRY_BASE]),
}


@pytest.mark.parametrize(("given", "there", "registry", "base", "pulled"), BASES.values(), ids=BASES.keys())
def test_the_base_is_the_first_that_can_be_had(
    engine: FolderEngine,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    there: list[str],
    registry: tuple[str, ...],
    base: str,
    pulled: list[str],
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_BASE_IMAGE", given)
    engine.add(*there)
    engine.registry = registry
    assert ensure_base(engine) == base  # type: ignore[arg-type]
    assert engine.pulled == pulled


def test_a_given_base_that_cannot_be_had_is_told(engine: FolderEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_BASE_IMAGE", OTHER_BASE)
    engine.add(REGISTRY_BASE, DEBIAN_BASE)
    with pytest.raises(ImageBuildError, match="AGENT_TOOLS_BASE_IMAGE: no route"):
        ensure_base(engine)  # type: ignore[arg-type]


def test_without_registry_and_mmdebstrap_the_message_says_what_to_do(
    engine: FolderEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with pytest.raises(ImageBuildError) as failed:
        ensure_base(engine, said.append)  # type: ignore[arg-type]
    for hint in ("no route to the registry", REGISTRY_BASE, "apt-get install mmdebstrap", "AGENT_TOOLS_BASE_IMAGE"):
        assert hint in str(failed.value)
    assert said[-1] == "No container registry answers (no route to the registry)"


def test_a_base_from_packages_that_fails_is_told(
    engine: FolderEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mmdebstrap"
    program.write_text("#!/bin/sh\necho 'E: no mirror answers' >&2\nexit 25\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ImageBuildError) as failed:
        ensure_base(engine)  # type: ignore[arg-type]
    expected = "E: no mirror answers" if os.getuid() == 0 else "as root on Debian or Ubuntu"
    assert expected in str(failed.value)


def test_an_engine_that_does_not_answer_is_no_reason_to_build(engine: FolderEngine) -> None:
    def unavailable(tag: str) -> bool:
        raise EngineUnavailable("no engine")

    engine.has_image = unavailable  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        ensure(engine)  # type: ignore[arg-type]
    assert engine.notes() == ""


def test_an_engine_that_is_lost_during_a_pull_is_no_missing_registry(engine: FolderEngine) -> None:
    def lost(tag: str) -> Iterator[str]:
        yield "image: Pulling"
        raise EngineUnavailable("no engine")

    engine.pull = lost  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        ensure_base(engine)  # type: ignore[arg-type]


# -- what a process remembers -----------------------------------------------------------------------------------------


class CountingEngine(FolderEngine):
    """Counts how often it is asked for an image."""

    asked = 0

    def has_image(self, tag: str) -> bool:
        self.asked += 1
        return super().has_image(tag)

    restore_image = staticmethod(lambda tag: False)


@pytest.fixture
def counting(engine: FolderEngine) -> CountingEngine:
    engine.add(REGISTRY_BASE)
    return CountingEngine(engine.folder)


def test_an_image_is_ensured_once(counting: CountingEngine) -> None:
    images = Images(counting)  # type: ignore[arg-type]
    tags = {images.ensure(), images.ensure([]), images.ensure(())}
    asked = counting.asked
    assert tags == {images.ensure()} == {tag_for()}
    assert counting.asked == asked
    assert counting.has_image(tag_for())


def test_the_log_has_the_main_lines_of_a_build(counting: CountingEngine, caplog: pytest.LogCaptureFixture) -> None:
    Images(counting).ensure()  # type: ignore[arg-type]
    assert [line.split()[0] for line in caplog.messages] == ["Building", "Built"]


def test_images_with_packages_are_remembered_apart(counting: CountingEngine) -> None:
    images = Images(counting)  # type: ignore[arg-type]
    assert images.ensure(["polars"]) == tag_for(["polars"]) != images.ensure()


def test_an_image_that_is_gone_is_built_again(counting: CountingEngine) -> None:
    tag = Images(counting).ensure()  # type: ignore[arg-type]
    counting._file(tag).unlink()
    assert counting.restore_image(tag)
    assert counting.has_image(tag)


def test_an_image_of_somebody_elses_is_not_built(counting: CountingEngine) -> None:
    Images(counting).ensure()  # type: ignore[arg-type]
    assert not counting.restore_image("somebody/elses:1")


def test_packages_that_are_none_are_refused_each_time(counting: CountingEngine) -> None:
    images = Images(counting)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(InvalidParams):
            images.ensure("polars")


def test_the_tag_of_a_recipe_is_computed_once() -> None:
    assert tag_for(["polars"]) is tag_for(Recipe(packages=("polars",)))


def test_a_package_that_is_no_text_is_named() -> None:
    with pytest.raises(InvalidParams, match="which is not a requirement"):
        tag_for([["polars"]])  # type: ignore[list-item]
