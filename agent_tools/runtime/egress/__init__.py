"""The egress allowlist: the host's side of the sandbox's proxy checks, resolves, connects, limits and records."""
