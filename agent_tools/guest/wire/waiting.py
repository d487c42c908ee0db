"""Waiting for one descriptor, by poll(2): select(2) ends at descriptor 1023. Standard library only."""

import select


def await_input(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until there is something to read, or the end; return whether there is. None waits for ever."""
    return _await(descriptor, select.POLLIN, seconds)


def await_room(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until something may be written, or nobody reads any more; return whether so. None waits for ever."""
    return _await(descriptor, select.POLLOUT, seconds)


def await_either(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until something may be read or written; return whether it may. None waits for ever."""
    return _await(descriptor, select.POLLIN | select.POLLOUT, seconds)


def await_hang_up(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until the other side has hung up, whatever there is to read; return whether it has. None waits for ever."""
    return _await(descriptor, 0, seconds)  # a hang-up is told unasked


def _await(descriptor: int, event: int, seconds: "float | None") -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    return bool(poller.poll(None if seconds is None else max(0.0, seconds) * 1000))
