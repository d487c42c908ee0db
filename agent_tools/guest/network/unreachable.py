"""The sentence beside an error of code that sought the network: its own words invite to try again, in vain."""

import errno
import os
import re
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType

from ..packages import PLACE

MAX_LINKS = 64  # exceptions that one came of, or holds
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}")
_CONNECTING = ("getaddrinfo", "create_connection")  # functions of socket and of clients that name what they look for
_UNREACHABLE = frozenset((errno.ENETUNREACH, errno.EADDRNOTAVAIL))
NO_NETWORK = (
    "This sandbox has no network, and trying again changes nothing: use the files that are there. Whoever runs it can "
    "attach files, or allow hosts with network={{'allow': ['{}']}}."
)
LISTED_ONLY = (
    "This sandbox reaches listed hosts alone, and those through the proxy that HTTPS_PROXY names: a client that is not "
    "told of it finds nothing (aiohttp: trust_env=True)."
)


def advice(exc: BaseException) -> str:
    """Return what to say beside an error whose cause is the sandbox's network; '' for any other."""
    try:
        found = [each for each in _chain(exc) if _is_of_network(each)]
        wanted = next(filter(None, (_wanted(each.__traceback__) for each in found)), "HOST")
    except Exception:  # noqa: BLE001  (whatever a class of the code's own raises)
        return ""
    if not found:
        return ""
    if os.path.isdir(PLACE):
        return LISTED_ONLY
    return NO_NETWORK.format(wanted) if [name for _, name in socket.if_nameindex()] == ["lo"] else ""


def _wanted(link: TracebackType | None) -> str:
    """Return the entry of a list that allows what the code sought, by the innermost frame that names it; '' if none."""
    entry = ""
    while link is not None:
        if link.tb_frame.f_code.co_name in _CONNECTING:
            entry = _entry(link.tb_frame.f_locals) or entry
        link = link.tb_next
    return entry


def _entry(given: Mapping[str, object]) -> str:
    host, port = given.get("host"), given.get("port")
    if type(host) is not str or not _HOST.fullmatch(host):
        return ""
    name = f"[{host}]" if ":" in host else host
    return f"{name}:{port}" if type(port) is int and port not in (0, 443) else name


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
