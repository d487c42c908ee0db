"""Reasoning and acting in text, for models without tool calls."""
