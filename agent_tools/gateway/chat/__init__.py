"""`/v1/chat/completions`: passed on as it is, or routed: calls of declared functions that are ours are run here."""
