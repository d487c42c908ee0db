"""The kernel in its own process: requests in, messages out, and IPython's shell between them."""
