"""The machine the host runs on: its addresses, its owner, how many descriptors it has."""
