"""The contract of tests/contract/test_session.py, kept by pods."""

from tests.contract.test_session import *  # noqa: F403
