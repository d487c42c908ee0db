"""Limits that the host told PID 1 through the environment, read once, before any code runs."""

import os

from .wire.limits import heard

MESSAGE_LIMITS = heard(os.environ)
