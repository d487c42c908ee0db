"""Serves host functions to user code."""
