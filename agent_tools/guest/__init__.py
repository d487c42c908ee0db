"""The guest: the only code of ours that runs inside the sandbox. It is trusted for nothing once user code has run."""
