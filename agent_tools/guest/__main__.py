"""PID 1 of the sandbox: finds the modules of its boot in the bundle."""

import os

from . import bundle

if __name__ == "__main__":
    bundle.install()
    from .pid1.supervisor import main

    main()
    os._exit(0)  # the shell that kernels are forks of has nothing to put away
