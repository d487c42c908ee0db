"""One sandbox: a container, its kernels, and its stop when idle."""
