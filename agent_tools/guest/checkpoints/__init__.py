"""Checkpoints: a kernel forks frozen copies of itself, one of which becomes the kernel when it is killed.

Theory of operation
    After a request the kernel forks a copy (taking.py), which shares all its memory until one of them writes. The copy
    releases the kernel's own resources and reads from a socket (frozen.py): it runs nothing. PID 1 has the
    other end of that socket and knows the copy by the pid that the operating system tells of it (keeper.py). When the
    kernel is gone, and all that it started, PID 1 sends the copy the sockets of the next kernel; the copy forks once
    more, and the fork goes on as the kernel, in the same shell, with all variables. The copy stays frozen: should the
    kernel die again before the next copy is taken, it serves again.

    A fork has one thread. So no copy is taken while the code's threads or processes live (blockers.py).

    What was written since a copy was taken exists twice. At the memory limit the copy has to go if it holds much, and
    the kernel if it does not (oom_priority.py).
"""
