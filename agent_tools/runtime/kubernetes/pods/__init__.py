"""Pods: what one is made of, how it comes up, and those that wait in a pool."""
