"""Requests: their owners, their fields, and the errors that answer them."""
