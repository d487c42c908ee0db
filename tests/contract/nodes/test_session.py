"""The contract of tests/contract/test_session.py, kept by nodes."""

from tests.contract.test_session import *  # noqa: F403
