"""Anthropic's Messages API before an upstream that has only OpenAI's."""
