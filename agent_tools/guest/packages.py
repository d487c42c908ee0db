"""The place of packages that the code installs: in sandboxes with a network by list, ahead of the image's own.

It is memory that code may be executed from, and gone with the sandbox. PID 1 does not look into it: a fresh kernel
does, and every other Python.
"""

import contextlib
import os
import site
import sys

PLACE = "/opt/session"
INSTALLER = "/opt/pip"
NO_INSTALLER = "/opt/no_pip"


def add() -> None:
    """Put the place on the path of this process, before the image's packages, and pip at its end.

    Where there is no such place, what answers in pip's stead is at its end.
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
