"""The last step of the image's build: boots once, and writes the bundle of what that imported."""

import sys

from .bundle import PATH, write
from .pid1 import supervisor

if __name__ == "__main__":
    supervisor.boot("/")
    write(PATH, [module for name, module in sys.modules.items() if name != "__main__"])
