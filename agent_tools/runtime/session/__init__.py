"""A session: what a caller keeps while sandboxes come and go."""
