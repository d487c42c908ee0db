"""The settings of containers: their sandboxes, and every limit with its default."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from agent_tools import settings
from agent_tools.engines.isolation import Wall
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.recipe import Flavour
from agent_tools.engines.volumes import Volume, read_volumes
from agent_tools.errors import InvalidParams
from agent_tools.limits import GIB, MAX_TIMEOUT, MIB, size_of
from agent_tools.machine.unsafe_folders import overlap
from agent_tools.sandbox.options import Options, nearest, read_skills

if TYPE_CHECKING:
    from agent_tools.skills.skill import Skill

MEMORY_TIERS = {"1g": GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}


Config = TypeVar("Config", bound="ContainersConfig")


def _split(value: object) -> object:
    """Split a text at commas; return any other value unchanged."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Tier = Literal["1g", "4g", "16g", "64g"]
LogLevel = Literal["debug", "info", "warning", "error"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""In ascending order."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_split)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, BeforeValidator(size_of), Field(ge=0)]
"""Bytes, also as text: 512m, 4g."""
Some = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(ge=0)]
SecondsToRun = Annotated[float, Field(gt=0, le=MAX_TIMEOUT)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ContainersConfig:
    """Times are seconds, sizes bytes. A field without `repr` is a secret.

    Raises:
        InvalidParams: a value cannot be used.
    """

    data_dir: Path = field(default_factory=lambda: settings.default_workspace() / "gateway")
    """The folder of containers' files, uploads and the SQLite database."""
    packages: Texts = ()
    """Further packages for the image."""
    debian_packages: Texts = ()
    """Further Debian packages for the image."""
    flavour: Flavour = "lean"
    """The image's contents: lean, full, agent, office or newest."""
    runtime: str | None = None
    """An OCI runtime of the engine, e.g. runsc."""
    isolation: Wall = "auto"
    """What stands between code and the host's kernel: auto (the engine's default), container or gvisor."""
    pool: Count = 1
    """Sandboxes kept ready for containers with the usual memory and no network; 0 for none."""
    preload: Texts = ("numpy", "pandas", "matplotlib.pyplot")
    """The modules that those have imported already."""
    audit: str = ""
    """A file that says who ran what: docs/audit.md. `-` is standard output; by default there is none."""
    audit_code: bool = False
    """The audit log has the code as well."""
    audit_required: bool = True
    """Nothing runs while the audit log cannot be written."""
    figures: str = ""
    """Folder with the libraries that draw interactive figures on pages; else the package agent_tools_figures."""
    skills: Texts = ()
    """Folders of Agent Skills, or folders of such, for all containers; they are read once: docs/skills.md."""
    volumes: Annotated[tuple[Volume, ...], BeforeValidator(read_volumes)] = ()
    """Folders that containers see at /volumes/NAME: `data=/srv/data,shared=/srv/shared:rw:20g`. By default every key
    may use all of them, and read only those without `rw`: docs/volumes.md."""
    allowed_domains: Texts = ()
    """Names that a container's network_policy may list: names such as `pypi` or `*.example.org`. By default nothing."""
    private_networks: Texts = ()
    """Blocks of addresses, beside the public internet, in which those names may lie, e.g. 10.1.0.0/16."""
    timeout: SecondsToRun = 60.0
    """The time limit of one call's code, and of a shell command that is given no other."""
    max_sandboxes: Some = 8
    """Sandboxes that run code at once; also how many responses with code do."""
    key_share: Annotated[float, Field(gt=0, le=1)] = 0.75
    """The part of `max_sandboxes` and of all that keys share by number that one key may have, if there are several."""
    max_kept_sandboxes: Count = 64
    """Sandboxes that are kept with their variables, those that run code included: never fewer than `max_sandboxes`.
    Beyond it the one unused for longest is parked."""
    min_memory_free: Size = GIB
    """Bytes of this machine's memory left available: with fewer, sandboxes beyond `max_sandboxes` are parked."""
    idle_stop: Seconds = 60.0
    """A sandbox unused for so long is stopped until its next call: it uses no processor, and keeps all; 0 is never."""
    cancel_grace: Seconds = 3.0
    """The time that code has to stop once its client left or cancelled it; then its kernel is killed."""
    keep_variables: bool = True
    """Save the variables of a container whose sandbox makes room for another, or whose gateway stops."""
    save_every: Seconds = 0.0
    """Save the variables of containers in use every so many seconds, in case the machine is lost; 0 is never."""
    max_variables_bytes: Size = 512 * MIB
    """Bytes of one container's variables that are saved; they count as its files do."""
    variables_timeout: Seconds = 30.0
    """The time for saving or bringing back one container's variables, beside that for their transport."""
    park_timeout: Seconds = 15.0
    """The time for saving the variables of all containers when the gateway stops; what is not saved then is lost."""
    memory: Tier = "1g"
    """Memory of a container that asks for no other."""
    max_memory: Tier = "4g"
    """The most a container may ask for."""
    container_idle: Seconds = 1_200.0
    """A container unused for so long expires: its files and variables are deleted."""
    user_container_idle: Seconds = 7 * 86_400.0
    """Likewise for a container that a server made for one of its users, who come back to a chat days later."""
    max_user_containers: Some = 20
    """Containers of one such user; beyond it the one unused for longest is deleted."""
    max_containers: Some = 1_000
    """Containers that live at once, for each key. Gateways that share a database may add one each at once."""
    max_containers_bytes: Size = 32 * GIB
    """Bytes of the files in all containers of one key."""
    max_uploads: Count = 1_000
    """Uploaded files that are kept, for each key."""
    max_uploads_bytes: Size = 16 * GIB
    """Bytes of all uploaded files of one key."""
    max_upload_bytes: Size = 512 * MIB
    """The largest file that may be uploaded."""
    max_container_bytes: Size = 4 * GIB
    """Bytes of the files in one container."""
    min_disk_free: Size = GIB
    """Bytes left free on the disk of `data_dir`: with fewer, nothing more is kept, and code is stopped."""
    retention: Seconds = 30 * 86_400.0
    """The age at which responses, uploaded files, and the metadata of expired containers are deleted."""

    @model_validator(mode="wrap")
    @classmethod
    def _tell(cls, given: object, build: Callable[[object], Self]) -> Self:
        try:
            return build(given)
        except ValidationError as exc:
            # pydantic's text shows secrets
            raise InvalidParams(_sentence(exc.errors()[0], _secrets(cls))) from None

    @model_validator(mode="after")
    def _check_by_use(self) -> Self:
        NetworkPolicy.read({"allow": self.allowed_domains, "private": self.private_networks})
        Options.read({"pool": self.pool, "preload": list(self.preload) if self.pool else []})
        _ = self.known_skills  # this reads them
        return self

    @functools.cached_property
    def known_skills(self) -> tuple[Skill, ...]:
        """The skills of `skills`, read once and copied to `data_dir`: later changes of a folder have no effect."""
        if self.skills:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # the copies' folder would make it open to all
        return read_skills(self.skills, self.data_dir / "skills")

    @model_validator(mode="after")
    def _check_volumes(self) -> Self:
        data_dir = Path(os.path.realpath(self.data_dir))
        if inside := [each.name for each in self.volumes if each.folder and overlap(each.folder, data_dir)]:
            raise InvalidParams(
                f"Volume {inside[0]} is, holds or lies in data_dir, which has the files of all keys. Give another one."
            )
        return self

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        if TIERS.index(self.memory) > TIERS.index(self.max_memory):
            raise InvalidParams(
                f"memory={self.memory} is more than max_memory={self.max_memory}: give max_memory={self.memory}, too."
            )
        return self

    @property
    def has_many_keys(self) -> bool:
        """There may be several keys, which share what there is."""
        return False

    def most_of_key(self, most: int) -> int:
        """Return how many of `most` things one key may have at once: its share, and at least one."""
        return max(1, int(most * self.key_share)) if self.has_many_keys else most

    @property
    def takes_functions(self) -> bool:
        """True if `Sandbox.put_functions` may add host functions."""
        return False

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Yield every setting by name, secrets masked."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            value = tuple(map(str, value)) if each.name == "volumes" else value
            yield each.name, "(set)" if not each.repr and value else value


def read_as(kind: type[Config], given: Mapping[str, Any]) -> Config:
    """Return a configuration from values or their text, by name; None stands for the default.

    Raises:
        InvalidParams: a name is unknown, or a value cannot be used.
    """
    names = [each.name for each in dataclasses.fields(kind)]
    if unknown := sorted(set(given) - set(names)):
        raise InvalidParams(f"There is no setting {unknown[0]!r}. {nearest(unknown[0], names)}")
    return kind(**{name: value for name, value in given.items() if value is not None})


def _secrets(config: type[ContainersConfig]) -> set[str]:
    return {each.name for each in dataclasses.fields(config) if not each.repr}


def _sentence(error: ErrorDetails, secrets: set[str]) -> str:
    """Return a sentence on an invalid setting, without the value of a secret one."""
    name, limits = str(error["loc"][0]), error.get("ctx", {})
    setting = name if name in secrets else f"{name}={error['input']!r:.40}"
    match error["type"]:
        case "missing" | "missing_argument":
            return f"{name} is missing."
        case "greater_than_equal" if limits["ge"] == 0 and str(error["input"]).lower() != "nan":
            return f"{setting} is negative."
        case "greater_than_equal" | "greater_than" | "less_than_equal":
            return f"{setting} is out of range: it should be {error['msg'].partition('should be ')[2]}."
        case "literal_error":
            return f"{setting} is not one of {limits['expected']}."
        case kind if kind.startswith(("int_", "float_")):
            return f"{setting} is not a number."
        case _:
            return f"{setting} cannot be used: {error['msg']}."
