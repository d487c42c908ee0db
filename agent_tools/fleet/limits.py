"""The limits of a fleet, the same for callers and hosts, which are of one release. Seconds and bytes."""

from __future__ import annotations

from agent_tools.limits import KIB, MIB

# The defaults of the arguments of `connect`.
LEASE_SECONDS = 20.0
WAIT_SECONDS = 60.0

# Of a lease, and of a host that is not used.
RENEWALS = 4  # while a lease lasts: three may be lost
IDLE_END_SECONDS = 600.0  # without a session, a reservation or a renewal, after which a host ends
END_SECONDS = 30.0  # in which a host that `agent-tools fleet down` ends may close its sandboxes

# Of one node and one host.
MAX_HOSTS_PER_NODE = 16
STARTS_AT_ONCE = 4  # sandboxes that start: more make each of them slower
RUNS_AT_ONCE = 64  # runs, commands and archives; more wait
WORK_AT_ONCE = 32  # openings, closings, files and other work; more wait
CONTROL_AT_ONCE = 8  # renewals, orders and questions
MAX_PENDING_CALLS = 4_096  # of one process that wait at one host; the host counts as full beyond that
MAX_UNSENT_MESSAGES = 4_096  # orders of a caller that wait for room among those calls
MAX_WAITING_ORDERS = 4_096  # orders that wait at a host for an earlier one; more end the run's calls
MAX_EARLY_ENDS = 256  # ends of runs that reached a session before their run did; the oldest are forgotten
MAX_QUEUED_ITEMS = 64  # outputs of a run that wait for their reader; then the run waits

# Of files and printed text on their way.
MAX_INLINE_BYTES = MIB  # of files within a message; larger ones are sent in pieces, in messages of their own
PIECE_BYTES = 8 * MIB
RUN_BYTES = 64 * KIB  # of printed text in one message of a run, about

# Of a host that does not answer.
ASK_SECONDS = 5.0  # in which a host must say how full it is, or begin a reservation
SKIP_SECONDS = 30.0  # in which a host that did not answer is asked only if there is no other
SILENCE_SECONDS = 30.0  # after which a working host is asked whether it still answers, and in which it must
SEND_SECONDS = 60.0  # of retries where too many messages wait for the host
CLOSE_SECONDS = 10.0  # that closing waits; the host closes by itself once the lease is over
