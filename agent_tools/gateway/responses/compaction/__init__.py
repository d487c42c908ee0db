"""Conversations made shorter: a summary by the model itself, in an item that stands for all before it."""
