"""Adapters: the sandbox under the names that agent frameworks have for one. A module for each; none imports another.

Each comes with an extra of its name, e.g. `pip install agent-tools-sandbox[langchain]`, and imports its framework when
it is imported itself.
"""
