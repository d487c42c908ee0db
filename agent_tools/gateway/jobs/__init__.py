"""Work that goes on for a client: admitted, followed, cancelled, streamed."""
