"""Connections of clients, and their JSON, messages and files: read here for every door, within the same limits."""
