"""Hosts as actors of a Ray cluster. The only place that imports ray."""
