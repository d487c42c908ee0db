"""PID 1 and the supervisors of branches: they hold kernels, serve the host's orders, and end what is to end."""
