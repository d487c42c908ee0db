"""The guest: the only part of agent_tools that runs inside the sandbox.

The host does not trust it once user code has run.
"""
