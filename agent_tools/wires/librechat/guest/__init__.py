"""The part of the wire that runs in the sandbox."""
