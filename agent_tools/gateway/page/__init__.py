"""The page at `/`: it shows running containers and responses, and runs code."""
