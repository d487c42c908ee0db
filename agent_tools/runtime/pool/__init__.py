"""Sessions: a work_dir and variables for a caller, independent of a single sandbox."""
