"""Programs that use clients of other sandboxes; scripts/try wires runs them."""
