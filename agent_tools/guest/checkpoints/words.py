"""The words between a kernel, its copies and PID 1: datagrams, whose sender the operating system tells.

kernel -> PID 1   skipped <why>   no copy was taken after the latest run
kernel -> PID 1   running         a run begins that may change much memory: watch it
copy   -> PID 1   copy <run>      with one socket, on which it waits: it was left after this run
PID 1  -> copy    wake <why>      with the sockets of the next kernel: messages, host calls, words to PID 1;
                                  why no copy was taken since, if none was
fork   -> PID 1   awake           it is the kernel now
PID 1  -> copy    branch          with two sockets: a fork of it is to be the supervisor of a branch, with the first
                                  as its lifeline; on the second it says
fork   -> PID 1   awake           it is the supervisor now
"""

MAX_BYTES = 64
SOCKETS = 3  # of a kernel
AWAKE, BRANCH = b"awake", b"branch"
THREADS, CHILDREN, MEMORY, TIME = "threads", "children", "memory", "time"
