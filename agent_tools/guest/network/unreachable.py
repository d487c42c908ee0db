"""The sentence beside an error of code that sought the network: its own words invite to try again, in vain."""

import errno
import os
import socket
from collections import deque
from collections.abc import Iterator

from ..packages import PLACE

MAX_LINKS = 64  # exceptions that one came of, or holds
_UNREACHABLE = frozenset((errno.ENETUNREACH, errno.EADDRNOTAVAIL))
NO_NETWORK = (
    "This sandbox has no network, and trying again changes nothing: use the files that are there. Whoever runs it can "
    "attach files, or allow hosts with network={'allow': ['example.com']}."
)
LISTED_ONLY = (
    "This sandbox reaches listed hosts alone, and those through the proxy that HTTPS_PROXY names: a client that is not "
    "told of it finds nothing (aiohttp: trust_env=True)."
)


def advice(exc: BaseException) -> str:
    """Return what to say beside an error whose cause is the sandbox's network; '' for any other."""
    try:
        if not any(map(_is_of_network, _chain(exc))):
            return ""
    except Exception:  # noqa: BLE001  (whatever a class of the code's own raises)
        return ""
    if os.path.isdir(PLACE):
        return LISTED_ONLY
    return NO_NETWORK if [name for _, name in socket.if_nameindex()] == ["lo"] else ""


def _is_of_network(exc: BaseException) -> bool:
    if isinstance(exc, socket.gaierror):
        return exc.errno in (socket.EAI_AGAIN, socket.EAI_NONAME)
    return isinstance(exc, OSError) and exc.errno in _UNREACHABLE


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it came of or holds, as far as that is looked at."""
    links: deque[BaseException | None] = deque([exc])
    for _ in range(MAX_LINKS):
        if not links:
            return
        if link := links.popleft():
            yield link
            links += [link.__cause__ or link.__context__, *getattr(link, "exceptions", ())[:MAX_LINKS]]
