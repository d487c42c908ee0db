"""What clients send: who they are, what they ask for, and what they are told when it cannot be served."""
