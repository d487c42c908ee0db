"""One sandbox: a container, its kernels, and when it is idle."""
