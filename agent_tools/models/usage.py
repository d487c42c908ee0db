"""Counts of tokens as servers of chat completions send them."""

from __future__ import annotations

from agent_tools.models.base import Usage


def wire_usage(usage: Usage) -> dict[str, int | dict[str, int]]:
    """Return the usage as an object of chat completions."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
