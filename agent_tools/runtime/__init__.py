"""Sessions of running code: sandboxes, kernels, commands, files and host calls, on top of an engine."""
