"""`/v1/responses`: from a request to a plan, from a turn's steps to events, and what is kept of them."""
