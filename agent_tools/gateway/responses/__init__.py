"""`/v1/responses`: a request becomes a plan, a turn's steps become events, and the result is stored."""

LOWEST_CLIENT = "1.108.1"
"""The lowest version of the `openai` package whose types fit the answers; older ones lack parts of reasoning."""
