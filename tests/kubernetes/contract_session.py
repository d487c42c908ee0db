"""The contract of tests/contract/test_session.py and tests/contract/test_kernel.py, kept by pods."""

from tests.contract.sessions import *  # noqa: F403
from tests.contract.test_kernel import *  # noqa: F403
from tests.contract.test_session import *  # noqa: F403
