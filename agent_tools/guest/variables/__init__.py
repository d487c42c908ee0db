"""Saved variables, as records that only kernels write and read."""
