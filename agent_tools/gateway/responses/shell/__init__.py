"""The hosted shell in a response."""
