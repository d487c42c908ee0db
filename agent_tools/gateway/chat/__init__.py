"""`/v1/chat/completions`: passed on unchanged, or routed, with calls of the router's functions run here."""
