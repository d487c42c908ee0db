"""Variables as records that outlive the sandbox: made and read by the kernel, and nowhere else."""
