"""The service of the sandbox's files."""
