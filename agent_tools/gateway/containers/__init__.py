"""Containers and their files: what outlives a response."""
