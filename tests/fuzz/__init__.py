"""Hostile bytes for every reader of untrusted input, and the one oracle that judges what they cost."""
