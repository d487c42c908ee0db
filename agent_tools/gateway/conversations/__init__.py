"""Conversations known again: the container of a conversation is found by what its client sends back of it."""
