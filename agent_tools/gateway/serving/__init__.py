"""A gateway as a process: its socket, its second port, and notifications to the service manager."""
