"""One IPython process: its messages as outputs, under a deadline."""
