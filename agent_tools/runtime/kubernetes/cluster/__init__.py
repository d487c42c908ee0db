"""The cluster: who we are there, and what its API server is asked."""
