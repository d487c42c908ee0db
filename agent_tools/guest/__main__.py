"""PID 1 of the sandbox: finds the modules of its boot in the bundle."""

from . import bundle

if __name__ == "__main__":
    bundle.install()
    from .init import main

    main()
