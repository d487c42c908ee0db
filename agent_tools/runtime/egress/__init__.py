"""A network by list: the host's end of the sandbox's proxy, which decides, resolves, connects, bounds and records."""
