"""Host functions served to the code in a sandbox."""
