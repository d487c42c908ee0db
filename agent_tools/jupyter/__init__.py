"""Jupyter kernels in sandboxes, for any client of Jupyter's messages."""
