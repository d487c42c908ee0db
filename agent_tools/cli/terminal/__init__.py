"""A session on a terminal: what is shown, what is said, and what stays in a file."""
