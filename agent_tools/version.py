"""The version of this package. The build and everything that shows a version read it here."""

__version__ = "0.1.0"
