"""Commands of a sandbox: processes under PID 1, beside the kernel."""
