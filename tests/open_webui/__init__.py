"""Run by `scripts/try openwebui`: Open WebUI itself, and its own terminal server, beside the gateway."""
