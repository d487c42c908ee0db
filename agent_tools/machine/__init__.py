"""The host's operating system: folders, safe removal, ids, descriptors, threads. Knows no sandbox."""
