"""Runs inside a container that is probed, on whatever Python (3.8 or newer) is there; imports nothing else of ours."""
