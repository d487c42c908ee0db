"""The contract of tests/contract/test_state.py, kept by nodes."""

from tests.contract.test_state import *  # noqa: F403
