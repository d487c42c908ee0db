"""Adapters of the sandbox to agent frameworks. One module for each; they do not import each other.

Each comes with an extra of its name, e.g. `pip install agent-tools-sandbox[langchain]`, and imports its framework when
it is imported itself.
"""
