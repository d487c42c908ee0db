"""Sandboxes and kernels: from an engine up to a session."""
