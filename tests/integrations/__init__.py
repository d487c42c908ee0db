"""Frameworks with our adapters, each run in a venv of its own by `scripts/try integrations`; scripts/test does not."""
