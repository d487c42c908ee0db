"""The host's access to work_dir, while untrusted code writes to it."""
