"""Container engines: the Engine protocol, Docker and Kubernetes. Independent of sessions."""
