"""The protocol by which Open WebUI uses a terminal server."""
