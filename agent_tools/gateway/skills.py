"""Skills that clients upload, in versions. The zip of each is an upload; a container mounts a copy from the shelf."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent_tools.containers.ids import new_id
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import own_skills, skill_copies
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.files import FOR_SKILLS, Uploads
from agent_tools.gateway.requests.api_errors import invalid, not_found
from agent_tools.gateway.requests.container_fields import GivenSkill, SkillReference
from agent_tools.gateway.store.records import StoredSkill, StoredSkillVersion
from agent_tools.gateway.store.store import Store
from agent_tools.sandbox.options import read_skills
from agent_tools.skills.bundle import Bundle, read_zip, zipped
from agent_tools.skills.shelf import UNUSED_SECONDS, put, sweep
from agent_tools.skills.skill import Skill

AT_ONCE = 2  # skills that are read at once, each of them in memory


@dataclass(frozen=True)
class UploadedSkill:
    """A skill and its versions, oldest first."""

    row: StoredSkill
    versions: Sequence[StoredSkillVersion]

    @property
    def id(self) -> str:
        """The skill's id."""
        return self.row.id

    def version(self, given: str = "") -> StoredSkillVersion:
        """Return the version of a number, the `latest`, or the default one.

        Raises:
            ApiError: 404, there is no such version.
        """
        if given == "latest":
            return self.versions[-1]
        number = given or str(self.row.default_number)
        found = next((each for each in self.versions if str(each.number) == number), None)
        if given and not found:
            raise not_found("skill version", given)
        return found or self.versions[-1]


class UploadedSkills:
    """The skills of all owners. Thread-safe."""

    def __init__(self, config: GatewayConfig, store: Store, uploads: Uploads) -> None:
        self._config = config
        self._store = store
        self._uploads = uploads
        self._reading = threading.Semaphore(AT_ONCE)

    def create(self, owner: str, read: Callable[[], Bundle]) -> UploadedSkill:
        """Store the result of `read` as the first version of a skill.

        Raises:
            ApiError: 400, it is no usable skill.
            ContainersError: no storage is left.
        """
        with self._reading, _refused("files"):
            bundle, id_ = read(), new_id("skill")
            name = bundle.manifest.name
            row = StoredSkill(id=id_, owner=owner, created_at=time.time(), name=name, default_number=1, last_number=1)
            return UploadedSkill(row, [self._add(row, 1, bundle, row)])

    def add_version(self, skill: UploadedSkill, read: Callable[[], Bundle], *, is_default: bool) -> StoredSkillVersion:
        """Store the result of `read` as the next version. Errors as for `create`; 404, the skill was just deleted."""
        with self._reading, _refused("files"):
            bundle, row = read(), skill.row
            if bundle.manifest.name != row.name:
                raise InvalidParams(f"The skill is named {row.name!r}: so are all its versions.")
            number = row.last_number + 1
            while not self._store.change(StoredSkill, row.id, {"last_number": number - 1}, last_number=number):
                number = self.find(row.owner, row.id).row.last_number + 1  # another request took it
            version = self._add(row, number, bundle)
        if is_default:
            self._store.change(StoredSkill, row.id, default_number=version.number)
        if not self._store.count(StoredSkill, id=row.id):  # it was deleted meanwhile
            self.delete_version(version)
            raise not_found("skill", row.id)
        return version

    def _add(self, skill: StoredSkill, number: int, bundle: Bundle, *more: StoredSkill) -> StoredSkillVersion:
        content = io.BytesIO(zipped(bundle))
        upload = self._uploads.add(skill.owner, f"{skill.name}.zip", FOR_SKILLS, content, prefix="skillver")
        version = StoredSkillVersion(
            id=upload.id,
            owner=skill.owner,
            created_at=upload.created_at,
            skill_id=skill.id,
            number=number,
            description=bundle.manifest.description,
        )
        try:
            self._store.add(*more, version)
        except BaseException:
            self._uploads.delete(upload.id)
            raise
        return version

    def find(self, owner: str, id_: str) -> UploadedSkill:
        """Return a skill of this owner.

        Raises:
            ApiError: 404, there is none.
        """
        if found := self.all_of(owner, id=id_):
            return found[0]
        raise not_found("skill", id_)

    def all_of(self, owner: str, **where: str) -> list[UploadedSkill]:
        """List the skills of an owner that fit, oldest first."""
        rows = self._store.find(StoredSkill, owner=owner, **where)
        known = self._store.find(StoredSkillVersion, owner=owner, skill_id=[row.id for row in rows])
        known.sort(key=lambda each: each.number)
        found = [UploadedSkill(row, [each for each in known if each.skill_id == row.id]) for row in rows]
        return [each for each in found if each.versions]  # one without is just being deleted

    def set_default(self, owner: str, id_: str, given: str) -> UploadedSkill:
        """Make a version the default one. Errors as for `find` and `version`."""
        number = self.find(owner, id_).version(given).number
        self._store.change(StoredSkill, id_, default_number=number)
        return self.find(owner, id_)

    def delete(self, skill: UploadedSkill) -> None:
        """Delete a skill with all versions; containers that have it keep it."""
        self._store.delete(StoredSkill, id=skill.id)
        for version in self._store.find(StoredSkillVersion, skill_id=skill.id):
            self.delete_version(version)

    def delete_version(self, version: StoredSkillVersion) -> None:
        """Delete a version, which is no skill's default one.

        Raises:
            ApiError: 400, it is.
        """
        if self._store.count(StoredSkill, id=version.skill_id, default_number=version.number):
            message = "The default version cannot be deleted: make another one the default, or delete the skill."
            raise invalid(message, "version", "invalid_value")
        self._uploads.delete(version.id)

    # -- in containers ------------------------------------------------------------------------------------------------

    def resolve(self, owner: str, given: Sequence[GivenSkill], path: str) -> dict[str, Skill]:
        """Return the skills for a new container, by the references of the client; `path` is the field's path.

        Raises:
            ApiError: 400 or 404, one cannot be used.
        """
        shelf, found = self._config.data_dir / "skills", dict[str, Skill]()
        for index, each in enumerate(given):
            with self._reading, _refused(f"{path}[{index}]"):
                skill = put(self._read(owner, each), shelf)
                read_skills([*self._config.known_skills, *found.values(), skill], shelf)  # which checks the names
            found[each.key] = skill
        return found

    def _read(self, owner: str, given: GivenSkill) -> Bundle:
        if isinstance(given, SkillReference):
            with self._uploads.opened(self.find(owner, given.skill_id).version(given.version).id) as content:
                return read_zip(content.read())
        try:
            bundle = read_zip(base64.b64decode(given.source.data, validate=True))
        except ValueError as exc:
            raise InvalidParams("The skill's data is no base64.") from exc
        if bundle.manifest.name != given.name:
            raise InvalidParams(f"The skill is named {given.name!r:.80}, and {bundle.manifest.name!r} in its SKILL.md.")
        return bundle

    def of_container(self, text: str) -> tuple[Skill, ...]:
        """Return the skills of a container's row; a 400 says that one is gone."""
        with _refused("container"):
            return own_skills(text, self._config)


def sweep_copies(config: GatewayConfig, store: Store, seconds: float = UNUSED_SECONDS) -> None:
    """Remove the copies of skills that are so old, and that no container has and no process uses."""
    if (shelf := config.data_dir / "skills").is_dir():
        texts = [row.skills for row in store.find(ContainerRecord, status="active")]
        sweep(shelf, {copy.partition("/")[0] for text in texts for copy in skill_copies(text).values()}, seconds)


@contextmanager
def _refused(param: str) -> Iterator[None]:
    try:
        yield
    except InvalidParams as exc:
        raise invalid(exc.message, param, "invalid_value") from exc
