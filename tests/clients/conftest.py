"""The gateway's fixtures, for the clients that people use."""

from tests.gateway.conftest import new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]
