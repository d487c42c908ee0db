"""The contract of tests/contract/test_commands.py, kept by nodes."""

from tests.contract.test_commands import *  # noqa: F403
