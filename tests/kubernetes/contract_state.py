"""The contract of tests/contract/test_state.py and tests/contract/test_variables.py, kept by pods."""

from tests.contract.states import new_sandbox as new_sandbox
from tests.contract.states import used_sandboxes as used_sandboxes
from tests.contract.test_state import *  # noqa: F403
from tests.contract.test_variables import *  # noqa: F403
