"""The choice of a model by a value, a name, a configuration as people write it, or a class by its dotted path."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping

from agent_tools import settings
from agent_tools.errors import ModelError
from agent_tools.models.base import Json, JsonObject, Model
from agent_tools.models.openai import OpenAIModel
from agent_tools.settings import DASHSCOPE_URL, Endpoint

_SERVER_KEYS = ("model_server", "base_url", "api_base")
_KNOWN = {"model", "api_key", "generate_cfg", "model_type", "name", *_SERVER_KEYS}
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+:[^\W\d]\w*")  # and not 'qwen2.5:7b', which is a model's name
_TYPES = {None: "", "oai": "", "openai": "", "qwen_dashscope": "dashscope"}


def get_chat_model(cfg: Model | Json | str | None) -> Model:
    """Return the model that a configuration names, without a request to it.

    Args:
        cfg: one of

            * a model;
            * a name (`'qwen-max'`);
            * a dict with `model`, and optionally `model_server` (or `base_url`, `api_base`; `'dashscope'` is known) and
              `api_key` instead of the environment's, and `generate_cfg` (see `OpenAIModel`);
            * `'package.module:Class'`, also as a dict's `model_type`: the class is called with the dict's other entries
              as keywords.

    Raises:
        ModelError: it names no model; the message says what to set.
    """
    if isinstance(cfg, str):
        cfg = {"model_type": cfg} if _PATH.fullmatch(cfg) else {"model": cfg}
    if isinstance(cfg, Mapping):
        kind = cfg.get("model_type")
        if isinstance(kind, str) and _PATH.fullmatch(kind):
            return _built(kind, {key: value for key, value in cfg.items() if key != "model_type"})
        return _on_server(cfg)
    if isinstance(cfg, Model):
        return cfg
    raise ModelError("No model is given: pass llm={'model': '...'}, a model's name, or a Model.")


def _on_server(cfg: Json) -> OpenAIModel:
    name = cfg.get("model")
    if not name or not isinstance(name, str):
        raise ModelError("The model's configuration has no 'model': give its name on the server.")
    if unknown := sorted(set(cfg) - _KNOWN):
        raise ModelError(f"The model's configuration has no {unknown[0]!r}. Known: {', '.join(sorted(_KNOWN))}.")
    if cfg.get("model_type") not in _TYPES:
        raise ModelError(f"model_type is unknown: use one of {', '.join(filter(None, _TYPES))}, or 'module:Class'.")
    return OpenAIModel(name, _endpoint(name, cfg), cfg.get("generate_cfg"))


def _endpoint(name: str, cfg: Json) -> Endpoint:
    key = cfg.get("api_key") or None
    option = next((k for k in _SERVER_KEYS if cfg.get(k)), "")
    server = cfg[option] if option else _TYPES[cfg.get("model_type")]
    if server == "dashscope":
        if not (dashscope := key or settings.dashscope_key()):
            raise ModelError("DashScope needs a key: set DASHSCOPE_API_KEY, or pass 'api_key'.")
        return Endpoint(DASHSCOPE_URL, dashscope)
    if server:
        if not str(server).startswith(("http://", "https://")):
            raise ModelError(f"{option} is not a URL: give one such as http://localhost:8000/v1, or 'dashscope'.")
        return Endpoint(str(server), key or settings.openai_key() or "EMPTY")
    found = settings.model_endpoint(name)
    if found:
        return Endpoint(found.base_url, key or found.api_key)
    if key:
        return Endpoint(DASHSCOPE_URL if "qwen" in name.lower() else settings.OPENAI_URL, key)
    raise ModelError(
        f"No server is known for the model {name}. Set OPENAI_BASE_URL (and OPENAI_API_KEY) to an OpenAI-compatible "
        "server, or DASHSCOPE_API_KEY, or OPENAI_API_KEY alone for OpenAI; or give 'base_url' and 'api_key' "
        "(of `agent-tools chat`: --base-url and --api-key-env)."
    )


def _built(path: str, keywords: JsonObject) -> Model:
    module, _, name = path.partition(":")
    try:
        built = getattr(importlib.import_module(module), name)(**keywords)
    except (ImportError, AttributeError) as exc:
        raise ModelError(f"{path} cannot be found: give 'package.module:Class'.") from exc
    except TypeError as exc:
        raise ModelError(f"{path} cannot be created with {', '.join(keywords) or 'nothing'}.") from exc
    if not isinstance(built, Model):
        raise ModelError(f"{path} is not a model: it has no method reply(messages, tools, options).")
    return built
