"""Runs inside a probed container, on its Python (3.8 or newer); imports nothing else of agent_tools."""
