"""Pools: sandboxes that are started ahead of the sessions that will use them."""
