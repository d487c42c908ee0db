"""The page at `/`: what runs here, and a place to try code."""
