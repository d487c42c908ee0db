"""The memory of a sandbox under gVisor: the limit of its code, and the engine's wider one.

gVisor's own processes count in the engine's limit, and Linux ends one of them where it is reached, and with it the
sandbox. PID 1 ends code that takes more than its limit before that (pid1/memory_limit.py).
"""

OWN_BYTES = 64 * 1024 * 1024  # of gVisor itself
SHARE = 4  # the engine's limit is wider by a quarter, which code may take before PID 1 looks,
LEAST_ROOM = 256 * 1024 * 1024  # and by this at least: code fills it as fast in a small sandbox


def engine_limit(memory: int) -> int:
    """Return the bytes to ask the engine for, of a sandbox whose code may take `memory` bytes."""
    return memory + max(memory // SHARE, LEAST_ROOM) + OWN_BYTES


def code_limit(total: int) -> int:
    """Return the bytes that code may take where the engine's limit is `total`: a quarter, if nobody has widened it."""
    room = total - OWN_BYTES
    return max(total // 4, min(room * SHARE // (SHARE + 1), room - LEAST_ROOM))
