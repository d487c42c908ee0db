"""The words between a kernel, its copies and PID 1: datagrams, whose sender the operating system tells.

PID 1 makes all sockets; no descriptor ever comes back to it.

kernel -> PID 1   skipped <why>   no copy was taken after the latest run
kernel -> PID 1   running         a run begins that may change much memory: watch it
PID 1  -> kernel  <number>        with one socket: the line of the next copy, on which that waits
copy   -> PID 1   copy <run> <n>  it was left after this run, and waits on the line of this number
PID 1  -> copy    wake <why>      with what the next kernel has: the sockets for messages, host calls and words to
                                  PID 1, and the pipes of stdout and stderr, each to read and to write;
                                  why no copy was taken since, if none was
fork   -> PID 1   awake           it is the kernel now
PID 1  -> copy    branch          with two sockets: a fork of it is to be the supervisor of a branch, with the first
                                  as its lifeline; on the second it says
fork   -> PID 1   awake           it is the supervisor now
"""

MAX_BYTES = 64
DESCRIPTORS = 7  # of a kernel
AWAKE, BRANCH = b"awake", b"branch"
THREADS, CHILDREN, MEMORY, TIME = "threads", "children", "memory", "time"
