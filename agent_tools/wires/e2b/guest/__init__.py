"""Code that runs in the kernels of sandboxes."""
