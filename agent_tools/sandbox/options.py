"""The configuration of a sandbox, read from a dict into checked values."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from agent_tools import settings
from agent_tools.engines.isolation import Isolation, Wall
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.recipe import Recipe
from agent_tools.engines.volumes import Volume, read_volumes
from agent_tools.errors import InvalidParams
from agent_tools.limits import MAX_TIMEOUT, CallLimits, Limits, with_sizes
from agent_tools.other_names import OPTIONS
from agent_tools.runtime.engine_lookup import checked_engine
from agent_tools.runtime.sandbox.idle_stop import MIN_SECONDS
from agent_tools.runtime.sandbox.session_spec import Ahead, SessionSpec
from agent_tools.sandbox.audit import AuditLog

if TYPE_CHECKING:
    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.runtime.runtime import Runtime
    from agent_tools.runtime.transport.transport import TransportName
    from agent_tools.skills.skill import Skill


Config = dict[str, Any]
"""Options, by name."""
FRESH = "fresh"
"""As `work_dir`: a temporary folder that is removed with the sandbox."""
MAX_POOL = 32  # ready sandboxes of one kind, at most
MAX_HISTORY = 100_000  # runs
Size = Union[int, float, str]
"""Bytes, or text such as '512m' and '4g'."""


class Keywords(TypedDict, total=False):
    """The options that `Sandbox` and `CodeInterpreter` also take as keywords, beside `hostcalls` and `runtime`."""

    work_dir: str | Path | None
    timeout: float
    limits: Limits | Mapping[str, float | str | bool]
    network: str | Mapping[str, Any] | Sequence[str] | Literal[False]
    memory: Size
    cpus: float
    pids: int
    tmp: Size
    home: Size
    shm: Size
    installed: Size
    file_size: Size
    open_files: int
    log: Size
    isolation: Wall
    gpus: int | str | None
    env: Mapping[str, str]
    static_url: str | None
    figures_dir: str | Path | None
    flavour: str
    packages: Sequence[str]
    debian_packages: Sequence[str]
    image: str | None
    allow_private_urls: bool
    transport: TransportName
    describe: str
    call_limits: CallLimits | Mapping[str, float | str | bool]
    skills: Sequence[str | os.PathLike[str]]
    volumes: str | Mapping[str, str | os.PathLike[str]] | Sequence[str | Volume]
    history: int
    audit: str | Path | AuditLog | None
    audit_code: bool
    audit_required: bool
    checkpoint: bool
    pool: int
    preload: Sequence[str]
    idle_stop: float
    engine: str | None
    name: str
    name_for_human: str
    args_format: str


def config_of(
    cfg: object, keywords: Mapping[str, Any], hostcalls: object, runtime: Runtime | str | None
) -> tuple[Config, Runtime | None]:
    """Return all options of a constructor, where keywords win, and `runtime` if it is a Runtime.

    A text as `runtime` is the option of that name: an OCI runtime.

    Raises:
        InvalidParams: `cfg` is not a dict.
    """
    if not isinstance(cfg, (Mapping, type(None))):
        hint = f", or work_dir={cfg!r:.80}" if isinstance(cfg, (str, os.PathLike)) else ""
        raise InvalidParams(f"cfg={cfg!r:.80} is not usable: give a dict of options{hint}.")
    found = {**(cfg or {}), **keywords}
    if hostcalls is not None:
        found["hostcalls"] = hostcalls
    if isinstance(runtime, str):
        found["runtime"], runtime = runtime, None
    return found, runtime


def read_options(pairs: Sequence[str]) -> Config:
    """Parse options NAME=VALUE, whose value is JSON or else text. Names of limits are accepted as well.

    Raises:
        InvalidParams: there is no '='.
    """
    found: Config = {}
    limits = {each.name for each in fields(Limits)} - _NAMES
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise InvalidParams(f"--set {pair!r:.60} is not usable: write NAME=VALUE, such as --set pids=64.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name in limits:
            found.setdefault("limits", {})[name] = value
        else:
            found[name] = value
    return found


_BASE_OPTIONS = ("name", "name_for_human", "args_format")
_AUDIT = ("audit_code", "audit_required")
_RECIPE = ("packages", "debian_packages", "flavour")
_FORBIDDEN = frozenset(
    (
        *("privileged", "cap_add", "capabilities", "security_opt", "user", "uid", "tty", "sysctls", "cgroup_parent"),
        *("devices", "mounts", "binds", "docker_socket", "ports", "publish", "oom_kill_disable"),
        *("pid_mode", "ipc_mode", "uts_mode", "userns_mode", "network_mode"),
    )
)
"""Options of container engines that this tool refuses."""


@dataclass(frozen=True)
class Options:
    """The options of `Sandbox(cfg)` and `CodeInterpreter(cfg)`, whose docstring explains each."""

    work_dir: Path | None
    timeout: float
    limits: Limits
    isolation: Isolation
    static_url: str | None = None
    figures_dir: Path | None = None
    image: str | None = None
    recipe: Recipe = field(default_factory=Recipe)
    allow_private_urls: bool = False
    transport: TransportName = "auto"
    describe: Literal["", "versions"] = ""
    hostcalls: HostCallsLike | None = None
    call_limits: CallLimits = field(default_factory=CallLimits)
    history: int = 0
    audit: AuditLog = field(default_factory=AuditLog)
    checkpoint: bool = True
    pool: int = 0
    preload: tuple[str, ...] = ()
    idle_stop: float = 0.0
    engine: str | None = None
    skills: tuple[Skill, ...] = ()
    volumes: tuple[Volume, ...] = ()

    @property
    def ahead(self) -> Ahead:
        """The number of sandboxes to keep ready."""
        return Ahead(self.pool, self.preload)

    def session_spec(self, image: str, work_dir: Path) -> SessionSpec:
        """Return everything needed to create a session with these options, without host functions."""
        return SessionSpec(
            image,
            work_dir,
            self.isolation,
            self.limits,
            self.transport,
            checkpoint=self.checkpoint,
            ahead=self.ahead,
            idle_stop=self.idle_stop,
            skills=self.skills,
            volumes=self.volumes,
        )

    @classmethod
    def read(cls, cfg: Config) -> Options:
        """Check a configuration and fill in defaults.

        Raises:
            InvalidParams: an option is unknown, unusable, or would break the isolation.
        """
        limits, isolation = _limits(cfg.get("limits") or {}), _isolation(cfg)
        pool = _count("pool", cfg.get("pool") or 0, MAX_POOL, "sandboxes to keep ready")
        return cls(
            work_dir=None if cfg.get("work_dir") == FRESH else _path(cfg, "work_dir"),
            timeout=timeout_of(cfg.get("timeout"), limits.timeout),
            limits=limits,
            isolation=isolation,
            static_url=_text(cfg, "static_url"),
            figures_dir=_folder(cfg, "figures_dir"),
            image=_image(cfg),
            recipe=Recipe.read(*(cfg.get(name) for name in _RECIPE)),
            allow_private_urls=_flag(cfg, "allow_private_urls", False),
            transport=_transport(cfg.get("transport") or "auto"),
            describe=_describe(cfg.get("describe") or ""),
            hostcalls=_hostcalls(cfg.get("hostcalls")),
            call_limits=_call_limits(cfg.get("call_limits") or {}),
            history=_count("history", cfg.get("history", 0), MAX_HISTORY, "runs to keep"),
            audit=_audit(cfg),
            pool=pool,
            preload=_preload(cfg.get("preload") or (), pool, isolation),
            idle_stop=_idle_stop(cfg.get("idle_stop") or None),
            checkpoint=_flag(cfg, "checkpoint", True),
            engine=checked_engine(cfg["engine"]) if cfg.get("engine") is not None else None,
            skills=read_skills(cfg.get("skills") or (), settings.state_dir() / "skills"),
            volumes=read_volumes(cfg.get("volumes") or ()),
        )


def _image(cfg: Config) -> str | None:
    """Check the image to use unchanged, into which nothing can be installed."""
    image = _text(cfg, "image")
    for name in ("packages", "debian_packages"):
        if image and cfg.get(name):
            raise InvalidParams(
                f"image={image!r:.80} is used unchanged: leave out {name}, or leave out image to build one."
            )
    return image


def timeout_of(timeout: object, default: float, name: str = "timeout") -> float:
    """Check a time limit in seconds, the option `name`; None means the default.

    Raises:
        InvalidParams: it is not a positive, finite number, or is above 24 hours.
    """
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise InvalidParams(f"{name}={timeout!r:.80} is not usable: give seconds as a positive number.")
    if not 0 < timeout <= MAX_TIMEOUT:  # also refuses nan and inf; the value is not shown: it may be huge
        raise InvalidParams(f"{name} must be above 0 and at most {MAX_TIMEOUT:g} s.")
    return float(timeout)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a sentence that suggests the known name closest to an unknown one, or lists all."""
    if meant := OPTIONS.get(name):
        return f"Use {meant}."
    near = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."


def plain(value: Any) -> Any:
    """Return an option as a JSON value."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _path(cfg: Config, name: str) -> Path | None:
    given = cfg.get(name)
    if given is not None and not isinstance(given, (str, Path)):
        raise InvalidParams(f"{name}={given!r:.80} is not usable: give a path as text, or a pathlib.Path.")
    return Path(given) if given else None


def _folder(cfg: Config, name: str) -> Path | None:
    """Check a folder: it must exist, or permissions must allow to make it."""
    if path := _path(cfg, name):
        nearest = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise InvalidParams(f"{name}={str(path)!r} is not usable: it is not a folder that this user may write to.")
    return path


def _text(cfg: Config, name: str) -> str | None:
    given = cfg.get(name)
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidParams(f"{name}={given!r:.80} is not usable: give a text, or None.")
    return given


def _hostcalls(given: HostCallsLike | None) -> HostCallsLike | None:
    is_usable = given is None or isinstance(given, Iterable) or hasattr(given, "functions")
    if not is_usable or isinstance(given, (str, bytes)):
        raise InvalidParams(f"hostcalls={given!r:.80} is not usable: give a Toolset, a list of functions, or a dict.")
    return given


def _flag(cfg: Config, name: str, default: bool) -> bool:
    given = cfg.get(name)
    if given is None:
        return default
    if not isinstance(given, bool):
        raise InvalidParams(f"{name}={given!r:.80} is not usable: give True or False.")
    return given


def _transport(name: Any) -> TransportName:
    if name not in ("auto", "sockets", "stdio"):
        raise InvalidParams(f"transport={name!r:.80} is not usable: give 'auto', 'sockets' or 'stdio'.")
    return name  # type: ignore[no-any-return]


def _describe(what: Any) -> Literal["", "versions"]:
    if what not in ("", "versions"):
        raise InvalidParams(f"describe={what!r:.80} is not usable: give 'versions' or nothing.")
    return what  # type: ignore[no-any-return]


def _count(name: str, given: Any, most: int, of: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= most:
        raise InvalidParams(f"{name}={given!r:.80} is not usable: give the number of {of}, at most {most:,}.")
    return given


def _audit(cfg: Config) -> AuditLog:
    given = cfg.get("audit")
    if isinstance(given, AuditLog):
        return given
    code, required = _flag(cfg, "audit_code", False), _flag(cfg, "audit_required", True)
    return AuditLog(_path(cfg, "audit") or "", code, required)


def read_skills(given: object, shelf: Path) -> tuple[Skill, ...]:
    """Return the skills in the given folders, copied to the shelf.

    Raises:
        InvalidParams: it is not a list of folders, or one of them has no usable skill.
    """
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in given):
        raise InvalidParams(f"skills={given!r:.80} is not usable: give a list of folders, e.g. ['~/skills'].")
    if not given:
        return ()
    from agent_tools.skills.shelf import shelved  # which loads yaml

    return shelved(given, shelf)


def _preload(names: Any, pool: int, isolation: Isolation) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, (list, tuple)) or not all(map(_is_module, names)):
        raise InvalidParams(f"preload={names!r:.80} is not usable: give a list of modules, e.g. ['numpy', 'pandas'].")
    if names and not pool:
        raise InvalidParams("preload is for sandboxes that are made ahead: give pool=1 or more as well.")
    if names and isolation.policy:
        raise InvalidParams(
            "preload cannot be combined with an egress allowlist: a package installed later could not replace a module "
            "that every kernel has already imported. Leave out one of them."
        )
    return tuple(dict.fromkeys(names))


def _idle_stop(seconds: Any) -> float:
    given = timeout_of(seconds, 0.0, "idle_stop")
    if 0 < given < MIN_SECONDS:
        raise InvalidParams(f"idle_stop={given:g} is not usable: give at least {MIN_SECONDS:g} s, or 0 for never.")
    return given


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _limits(overrides: object) -> Limits:
    if isinstance(overrides, Limits):
        return overrides
    return Limits(**_checked("limits", overrides, Limits))


def _call_limits(overrides: object) -> CallLimits:
    if isinstance(overrides, CallLimits):
        return overrides
    return CallLimits(**_checked("call_limits", overrides, CallLimits))


def _checked(option: str, overrides: object, of: type) -> dict[str, Any]:
    """Return overrides of a dataclass of numbers and switches, once checked."""
    if not isinstance(overrides, dict):
        raise InvalidParams(f"{option}={overrides!r:.80} is not usable: give a dict of overrides.")
    kinds = {each.name: each.type for each in fields(of)}
    _refuse_unknown(option, overrides, set(kinds))
    overrides = with_sizes(overrides)
    for name, value in overrides.items():
        if kinds[name] == "bool":
            if not isinstance(value, bool):
                raise InvalidParams(f"{option} has {name}={value!r}, which is not True or False.")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InvalidParams(f"{option} has {name}={value!r}, which is not a positive number.")
    return overrides


_NAMES = {each.name for each in fields(Options)} - {"recipe"} | {*_BASE_OPTIONS, *_AUDIT, *_RECIPE}


def _isolation(cfg: Config) -> Isolation:
    names = {each.name for each in fields(Isolation)}
    _refuse_unknown("A sandbox", cfg, names | _NAMES)
    given = {name: value for name, value in cfg.items() if name in names}
    if given.get("network") is False:
        given["network"] = "none"
    if isinstance(given.get("network"), (list, tuple)):
        given["network"] = {"allow": given["network"]}
    if isinstance(given.get("network"), Mapping):
        given["network"] = NetworkPolicy.read(given["network"])
    return Isolation(**given)


def _refuse_unknown(where: str, given: Config, known: set[str]) -> None:
    for name in given:
        if name not in known:
            reason = " It would break the isolation." if name in _FORBIDDEN else ""
            raise InvalidParams(f"{where} has no option {name!r}.{reason} {nearest(str(name), sorted(known))}")
