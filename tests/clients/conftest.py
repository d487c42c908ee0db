"""The gateway's fixtures, for the clients that people use."""

import sys

from tests.gateway.conftest import new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]

collect_ignore = [] if sys.version_info >= (3, 11) else ["test_open_responses.py"]  # its schema's package needs 3.11
