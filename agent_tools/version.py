"""The version of this package, and nothing else: the build reads it here, and so does everything that shows it."""

__version__ = "0.1.0"
