"""Calls that are the client's to answer: its custom tools and namespaces."""
