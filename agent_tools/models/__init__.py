"""Language models: any server that speaks OpenAI's chat completions. Importing this loads no client."""

from agent_tools.models.base import Model
from agent_tools.models.choice import get_chat_model
from agent_tools.models.openai import OpenAIModel

__all__ = ["Model", "OpenAIModel", "get_chat_model"]
