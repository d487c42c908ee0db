"""The limits of a fleet: what a caller and a host bear of each other, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from agent_tools.limits import KIB, MIB


@dataclass(frozen=True)
class FleetLimits:
    """The same on both sides, which are of one release. Seconds and bytes."""

    lease: float = 20.0
    """Seconds after which a host closes what its caller has not renewed; `connect(lease=)`."""
    renewals: int = 4
    """Renewals of a lease while it lasts."""
    patience: float = 60.0
    """Seconds that a session waits for a free slot, where all hosts are full; `connect(patience=)`."""
    idle_end: float = 600.0
    """Seconds without a session, a reservation or a renewal, after which a host ends."""
    hosts_per_node: int = 16
    """Hosts of one node, at most; `connect(hosts_per_node=)`, which is 1."""
    opens_at_once: int = 4
    """Sandboxes of one host that start at the same time: more make each of them slower."""
    runs_at_once: int = 64
    """Runs, commands and archives that go on at the same time at one host; more wait."""
    work_at_once: int = 32
    """Openings, closings, files and other work of one host at the same time; more wait."""
    control_at_once: int = 8
    """Renewals, orders and questions that one host answers at the same time."""
    pending_calls: int = 4_096
    """Calls of one process that may wait at one host; more are answered as by a full one."""
    unsent_messages: int = 4_096
    """Orders of a caller that may wait for room among those calls; who has more waits."""
    waiting_orders: int = 4_096
    """Orders that may wait at a host for one that is on its way; more end the run's calls."""
    early_words: int = 256
    """Runs that a session remembers to have been ended before they came; beyond that the oldest are forgotten."""
    queued_items: int = 64
    """Outputs of a run that wait at a host for their reader, who holds up the run beyond that."""
    inline_bytes: int = MIB
    """Bytes of files that travel with a message; what is more travels in pieces, in messages of its own."""
    piece_bytes: int = 8 * MIB
    """Bytes of one piece of a file."""
    run_bytes: int = 64 * KIB
    """Bytes of printed text in one message of a run, about; more follows in another one."""
    passed_over: float = 30.0
    """Seconds for which a host that did not answer is not asked again, while there are others."""
    ask_seconds: float = 5.0
    """Seconds in which a host must say how full it is, or begin a reservation."""
    silence: float = 30.0
    """Seconds after which a host that works for a caller is asked whether it still answers, and in which it must."""
    send_seconds: float = 60.0
    """Seconds for which a message is tried again where too many wait for its host."""
    close_seconds: float = 10.0
    """Seconds that closing waits for the host, which closes by itself what is not renewed."""
    end_seconds: float = 30.0
    """Seconds in which a host that is ended by `agent-tools fleet down` may close its sandboxes by itself."""


LIMITS = FleetLimits()
