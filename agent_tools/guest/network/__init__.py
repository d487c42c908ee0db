"""The sandbox's end of a network by list, and its own names."""
