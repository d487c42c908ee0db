"""PID 1 of the sandbox. `bake`, the last step of the image's build, boots it and writes the bundle."""

import os
import sys

from . import bundle

if __name__ == "__main__":
    if sys.argv[1:] != ["bake"]:
        bundle.install()
    from .pid1 import supervisor

    if sys.argv[1:] == ["bake"]:
        supervisor.boot("/")
        bundle.write(bundle.PATH, [module for name, module in sys.modules.items() if name != "__main__"])
    else:
        supervisor.main()
    os._exit(0)  # skips the exit hooks of the shell that kernels are forks of
