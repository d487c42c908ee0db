"""Programs that run in the sandbox, sent there as text; they import nothing of ours."""
