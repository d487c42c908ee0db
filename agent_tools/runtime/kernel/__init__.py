"""One IPython process: runs code under a time limit and returns its messages as outputs."""
