"""Routes on the length of a conversation: how many tokens it has, and its summary."""
