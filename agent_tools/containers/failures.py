"""The failures of containers and files. Models read the message; each door maps the class to its own error."""

from __future__ import annotations

from agent_tools.errors import ToolServiceError


class ContainersError(ToolServiceError):
    """Base of the failures of containers. The message says what happened and what to do next."""

    def __init__(self, message: str) -> None:
        super().__init__(code=type(self).__name__, message=message)

    def __str__(self) -> str:
        return self.message


class NotFound(ContainersError):
    """The owner has no object of this id."""

    noun = "object"

    def __init__(self, id_: str) -> None:
        super().__init__(f"No {self.noun} found with id '{id_[:80]}'.")


class ContainerNotFound(NotFound):
    """The owner has no such container."""

    noun = "container"


class ContainerFileNotFound(NotFound):
    """The container has no such file."""

    def __init__(self, id_: str) -> None:
        ContainersError.__init__(self, f"There is no file {id_[:80]!r} in this container.")


class UploadNotFound(NotFound):
    """The owner has uploaded no such file."""

    noun = "file"


class ContainerExpired(ContainersError):
    """The container has expired or was deleted."""

    def __init__(self) -> None:
        super().__init__("Container is expired.")


class ContainerExists(ContainersError):
    """A container of this id or name exists already."""

    def __init__(self) -> None:
        super().__init__("A container of this id or name exists already: give another id or name.")


class ContainerNotDeleted(ContainersError):
    """The container has ended, but some of its files could not be deleted yet."""


class TooManyContainers(ContainersError):
    """The owner has reached the limit of containers."""


class KeyRevoked(ContainersError):
    """The owner's key, or the group of the user that the owner is, was revoked."""

    def __init__(self) -> None:
        super().__init__("The API key was revoked.")


class RowsAway(ContainersError):
    """The rows cannot be read or written now."""

    def __init__(self) -> None:
        super().__init__("The database does not answer; try again later.")


class ContainerElsewhere(ContainersError):
    """Another gateway, `gateway`, has the container's sandbox."""

    def __init__(self, gateway: str) -> None:
        super().__init__(
            f"The gateway {gateway} has the container's sandbox. Send all requests of a key to one gateway, as "
            "deploy/nginx-several.conf does."
        )
        self.gateway = gateway


class NoSandbox(ContainersError):
    """Every sandbox is in use."""


class MemoryRefused(ContainersError):
    """No such memory tier is available here."""


class NetworkRefused(ContainersError):
    """Network access, or access to a requested domain, is not allowed here."""


class StorageFull(ContainersError):
    """The owner has reached the limit of files, or of their bytes."""


class DiskFull(ContainersError):
    """The disk is nearly full for everyone."""


class FileTooLarge(ContainersError):
    """The file is larger than allowed."""


class FileNotWritten(ContainersError):
    """The file cannot be written under this name."""
