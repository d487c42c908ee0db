"""Threads that work beside the callers: one for all looks, one for all sockets, and what a fork does to them."""
