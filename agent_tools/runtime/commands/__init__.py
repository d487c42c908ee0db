"""Commands of a sandbox: processes in PID 1's care, beside the kernel."""
