"""The last step of the image's build: boots once, and writes the bundle of what that imported."""

import sys

from . import supervisor
from .bundle import PATH, write

if __name__ == "__main__":
    supervisor.boot("/")
    write(PATH, [module for name, module in sys.modules.items() if name != "__main__"])
