"""`/v1/responses`: from a request to a plan, from a turn's steps to events, and what is kept of them."""

LOWEST_CLIENT = "1.108.1"
"""The lowest version of the `openai` package whose types describe what is sent; older ones lack parts of reasoning."""
