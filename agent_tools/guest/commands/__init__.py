"""Commands beside the kernel: one process that runs them all."""
