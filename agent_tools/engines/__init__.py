"""Engines run containers: the protocol, and Docker and Kubernetes. They know no session."""
