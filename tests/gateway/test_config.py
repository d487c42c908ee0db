"""Settings: read from text, checked, shown."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig, read_config


def test_settings_are_read_from_text_and_secrets_are_not_shown(work_dir: Path) -> None:
    config = read_config(
        {
            "upstream": "http://u/v1",
            "api_keys": "secret-key-1, secret-key-2",
            "port": "81",
            "timeout": "2.5",
            "data_dir": str(work_dir),
            "memory": "4g",
            "upstream_key": "secret-up",
            "database": "postgresql://secret-user@h/d",
        }
    )
    assert (config.port, config.timeout, config.memory) == (81, 2.5, "4g")
    assert config.api_keys == ("secret-key-1", "secret-key-2")
    assert "secret-" not in repr(config) + str(dict(config.shown()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--upstream"),
        ({"upstream": "localhost:8000"}, "no URL"),
        ({"upstream": "http://me:secret@u/v1"}, "credentials"),
        ({"upstream_profile": "gwen"}, "auto, openai, deepseek, qwen"),
        ({"passed_fields": "top_k,messages"}, "'messages', which the gateway itself sends"),
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"api_keys": ("short",)}, "fewer than 8"),
        ({"port": "many"}, "not a number"),
        ({"memory": "2g"}, "not one of"),
        ({"max_queue": -1}, "max_queue=-1 is negative"),
        ({"timeout": "-0.5"}, "timeout='-0.5' is out of range: it should be greater than 0"),
        ({"timeout": "nan"}, "out of range"),
        ({"port": 65_536}, "less than or equal to 65535"),
        ({"key_share": "0"}, "greater than 0"),
        ({"max_queue": "2.5"}, "not a number"),
        ({"upstream_key": 5}, "upstream_key cannot be used"),
        ({"nonsense": 1}, "no setting"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, Any], words: str) -> None:
    base = {} if not given else {"upstream": "http://u/v1"}
    with pytest.raises(InvalidParams, match=words):
        read_config({**base, **given})


def test_a_setting_that_cannot_be_used_is_not_shown_if_it_is_secret() -> None:
    for given in ({"upstream_key": ["my-secret"]}, {"database": ["my-secret"]}, {"api_keys": [["my-secret"]]}):
        with pytest.raises(InvalidParams) as refused:
            read_config({"upstream": "http://u", **given})
        assert "my-secret" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(InvalidParams, match="nonsense"):
        GatewayConfig("http://u", nonsense=1)  # type: ignore[call-arg]


def test_a_share_is_a_part_of_the_whole() -> None:
    for share in (0.0, 1.1, -1.0):
        with pytest.raises(InvalidParams, match="key_share"):
            GatewayConfig("http://u", key_share=share)


def test_a_pool_can_be_changed_turned_off_and_is_checked_at_the_start() -> None:
    assert (GatewayConfig("http://u").pool, GatewayConfig("http://u").preload[0]) == (1, "numpy")
    assert read_config({"upstream": "http://u", "pool": "0"}).pool == 0
    assert read_config({"upstream": "http://u", "preload": "numpy, pandas"}).preload == ("numpy", "pandas")
    for given in ({"pool": 100}, {"preload": ("no module",)}):
        with pytest.raises(InvalidParams):
            GatewayConfig("http://u", **given)  # type: ignore[arg-type]
