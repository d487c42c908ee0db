"""Gateways to put something in front of."""

from __future__ import annotations

from tests.gateway.conftest import new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]
