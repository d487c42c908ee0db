"""The contract of tests/contract/test_commands.py, kept by pods."""

from tests.contract.test_commands import *  # noqa: F403
