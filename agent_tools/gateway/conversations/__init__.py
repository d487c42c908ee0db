"""Recognises conversations: finds the container of a conversation by the parts that its client sends back."""
