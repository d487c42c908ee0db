"""Kubernetes: an engine of pods."""
