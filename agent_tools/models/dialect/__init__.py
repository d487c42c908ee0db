"""The dialects of chat completions: what a server wants to be sent, learned from what it refuses."""
