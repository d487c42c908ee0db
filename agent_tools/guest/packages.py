"""The folder for packages that user code installs, in sandboxes with an egress allowlist, before the image's packages.

It is an executable folder in memory, removed with the sandbox. PID 1 does not import from it; fresh kernels and all
other Python processes do.
"""

import contextlib
import os
import site
import sys

PLACE = "/opt/session"
INSTALLER = "/opt/pip"
NO_INSTALLER = "/opt/no_pip"


def add() -> None:
    """Put the folder on the path of this process, before the image's packages, and pip at the end.

    Without this folder, a replacement for pip is at the end.
    """
    if not os.path.isdir(PLACE):
        if os.path.isdir(NO_INSTALLER) and NO_INSTALLER not in sys.path:
            sys.path.append(NO_INSTALLER)
        return
    own = f"{PLACE}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    if own in sys.path:
        return
    with contextlib.suppress(OSError):
        os.makedirs(own, exist_ok=True)  # what is not there at the start would not be looked for again
    stock = [index for index, path in enumerate(sys.path) if path.endswith("site-packages")]
    sys.path.insert(stock[0] if stock else len(sys.path), own)
    site.addsitedir(own)  # for its .pth files
    sys.path.append(INSTALLER)
