"""Other people's suites for sandboxes, each with a shim of ours; `scripts/suites` runs them, scripts/test does not."""
