"""Published images of the sandbox: pulled by the fingerprint of this installation instead of a build.

A release has the digests of its images in `published.json` beside this file, so that the registry cannot replace
them.
A repository of the operator's own is asked for the fingerprint as a tag.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_tools import settings
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.text import one_line, shorten

RELEASED = Path(__file__).with_name("published.json")
"""`{"repository": ..., "signer": ..., "digests": {fingerprint: "sha256:..."}}`; `scripts/release` writes it."""
ISSUER = "https://token.actions.githubusercontent.com"
VERIFY_SECONDS = 60


@dataclass(frozen=True)
class Source:
    """A published image. `signer` is a regular expression for the signing identity; '' if it is not signed."""

    reference: str
    signer: str = ""


def source_of(tag: str, released: Path = RELEASED) -> Source | None:
    """Return the published image for the fingerprint in a local tag; None if there is none, or pulls are off."""
    repository, fingerprint = settings.image_repository(), tag.partition(":")[2]
    if repository:
        return None if repository == "none" else Source(f"{repository}:{fingerprint}")
    record = json.loads(released.read_text())
    digest = record["digests"].get(fingerprint)
    return Source(f"{record['repository']}@{digest}", record["signer"]) if digest else None


def pull(engine: DockerEngine, source: Source, tag: str, progress: Callable[[str], None]) -> None:
    """Pull a published image, check its signature if cosign is installed, and give it its local tag.

    Raises:
        EngineError: it could not be pulled, or the release did not sign it.
    """
    progress(f"Pulling {source.reference}")
    for line in engine.pull(source.reference):
        progress(line)
    if source.signer:
        _verify(source)
    engine.tag_image(source.reference, tag)
    progress(f"Pulled {tag} from {source.reference}")


def pulled(engine: DockerEngine, tag: str, progress: Callable[[str], None]) -> bool:
    """Return whether an image could be pulled. A failure is reported as progress, since the image can still be built.

    Raises:
        EngineUnavailable: the engine does not answer.
    """
    source = source_of(tag)
    if source is None:
        return False
    try:
        pull(engine, source, tag, progress)
    except EngineUnavailable:
        raise
    except EngineError as exc:
        progress(f"No published image: {exc}. Building it instead")
        return False
    return True


def _verify(source: Source) -> None:
    if not (cosign := shutil.which("cosign")):
        return
    command = [cosign, "verify", "--certificate-oidc-issuer", ISSUER, "--certificate-identity-regexp", source.signer]
    try:
        done = subprocess.run(
            [*command, source.reference], capture_output=True, text=True, timeout=VERIFY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise EngineError(f"cosign did not answer about {source.reference} within {VERIFY_SECONDS} seconds") from exc
    if done.returncode:
        raise EngineError(f"cosign does not verify {source.reference}: {one_line(shorten(done.stderr, 500))}")
