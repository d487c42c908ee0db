"""PID 1 and the supervisors of branches: start and end kernels and other processes, by orders of the host."""
