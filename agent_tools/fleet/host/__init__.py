"""The host's half of a fleet: the sandboxes of one node, by id. It knows no network."""
