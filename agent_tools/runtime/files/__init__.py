"""work_dir as the host touches it, while somebody else writes to it."""
