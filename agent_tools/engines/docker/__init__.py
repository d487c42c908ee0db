"""The Docker engine: the only folder that knows it."""
