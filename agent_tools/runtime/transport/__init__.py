"""From the host to a sandbox: the lifeline, and the channels beside it."""
