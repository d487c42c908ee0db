"""The libraries for engines over ssh lie in a folder of their own: the docker SDK imports them where it finds them."""

from __future__ import annotations

import sys

PYTHONPATH = f"{sys.prefix}/ssh"  # where scripts/install has put them
