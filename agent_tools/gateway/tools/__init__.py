"""The tools that a model calls in a container, from the first call of an answer to its end."""
