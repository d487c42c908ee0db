"""A program executed in a pod, with its streams over a WebSocket."""
