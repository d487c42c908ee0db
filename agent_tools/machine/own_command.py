"""The command line of this installation, as configurations of other programs start it."""

from __future__ import annotations

import sys

OWN_COMMAND = (sys.executable, "-P", "-m", "agent_tools")
"""Program and first arguments. With -P no module comes from the folder in which it is started: these programs start it
in a project's folder, where code from a sandbox may have left an `agent_tools.py` or a `json.py`."""
