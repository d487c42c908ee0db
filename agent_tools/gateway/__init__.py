"""The gateway: OpenAI's API in front of any OpenAI-compatible server, with a code interpreter of one's own."""
