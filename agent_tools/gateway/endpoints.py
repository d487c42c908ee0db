"""The upstream's further endpoints that are passed on: those that answer at once and keep nothing.

Files, batches, fine-tunes, vector stores, assistants and whatever a server has for its operator are not among them:
what lies there is the operator's, or another client's.
"""

from __future__ import annotations

ENDPOINTS = (
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
    "completions",
    "detokenize",
    "embeddings",
    "images/edits",
    "images/generations",
    "images/variations",
    "moderations",
    "rerank",
    "score",
    "tokenize",
)
BESIDE_V1 = frozenset(("detokenize", "tokenize"))
"""Those that servers have beside /v1 and not below it: https://docs.vllm.ai/en/latest/serving/openai_compatible_server."""
