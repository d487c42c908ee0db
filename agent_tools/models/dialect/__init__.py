"""The dialects of chat completions: the requests that a server accepts, learned from its refusals."""
