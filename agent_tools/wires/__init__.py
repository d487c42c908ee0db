"""Protocols of other products, each translated into code, commands and files of containers."""
