"""Containers and their files, which outlive a response."""
