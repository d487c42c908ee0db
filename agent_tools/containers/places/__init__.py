"""The sandboxes of containers: those that run, those that are kept, and what is saved of those that make room."""
