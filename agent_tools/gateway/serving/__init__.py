"""A gateway as a process: its socket, its second port, what the service manager is told."""
