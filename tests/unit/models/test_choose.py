import pytest

from agent_tools import settings
from agent_tools.errors import ModelError
from agent_tools.models import OpenAIModel, get_chat_model
from agent_tools.models.base import Model
from agent_tools.settings import DASHSCOPE_URL, OPENAI_URL, Endpoint
from agent_tools.testing import ScriptedModel

VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "DASHSCOPE_API_KEY")


def endpoint(cfg: object) -> Endpoint:
    model = get_chat_model(cfg)  # type: ignore[arg-type]
    assert isinstance(model, OpenAIModel)
    return model.endpoint


@pytest.mark.parametrize(
    ("environ", "model", "expected"),
    [
        ({"OPENAI_BASE_URL": "http://h/v1"}, "qwen-max", Endpoint("http://h/v1", "EMPTY")),
        ({"OPENAI_BASE_URL": "http://h/v1", "OPENAI_API_KEY": "k"}, "qwen-max", Endpoint("http://h/v1", "k")),
        ({"OPENAI_BASE_URL": "http://h/v1", "DASHSCOPE_API_KEY": "d"}, "qwen-max", Endpoint("http://h/v1", "EMPTY")),
        ({"OPENAI_API_KEY": "k"}, "gpt-5", Endpoint(OPENAI_URL, "k")),
        ({"DASHSCOPE_API_KEY": "d"}, "qwen-max", Endpoint(DASHSCOPE_URL, "d")),
        ({"DASHSCOPE_API_KEY": "d", "OPENAI_API_KEY": "k"}, "qwen-max", Endpoint(DASHSCOPE_URL, "d")),
        ({"DASHSCOPE_API_KEY": "d", "OPENAI_API_KEY": "k"}, "gpt-5", Endpoint(OPENAI_URL, "k")),
        ({}, "qwen-max", None),
    ],
)
def test_the_environment_says_where(environ: dict[str, str], model: str, expected: Endpoint | None) -> None:
    assert settings.model_endpoint(model, environ) == expected


def test_a_name_alone_resolves_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", "d")
    assert endpoint({"model": "qwen-max"}) == endpoint("qwen-max") == Endpoint(DASHSCOPE_URL, "d")


@pytest.mark.parametrize("key", ["model_server", "base_url", "api_base"])
def test_the_configuration_says_where(key: str) -> None:
    assert endpoint({"model": "m", key: "http://h/v1", "api_key": "k"}) == Endpoint("http://h/v1", "k")
    assert endpoint({"model": "m", key: "http://h/v1"}) == Endpoint("http://h/v1", "EMPTY")


@pytest.mark.parametrize("cfg", [{"model_server": "dashscope"}, {"model_type": "qwen_dashscope"}, {}])
def test_dashscope_by_name(cfg: dict[str, str]) -> None:
    assert endpoint({"model": "qwen-max", "api_key": "k", **cfg}) == Endpoint(DASHSCOPE_URL, "k")


def test_a_models_name_with_a_colon_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/v1")
    model = get_chat_model("qwen2.5:7b")
    assert isinstance(model, OpenAIModel)
    assert model.model == "qwen2.5:7b"


def test_nothing_set_says_what_to_set() -> None:
    with pytest.raises(ModelError) as caught:
        get_chat_model({"model": "qwen-max"})
    assert all(name in str(caught.value) for name in VARIABLES)


def test_a_model_is_itself() -> None:
    model = ScriptedModel([])
    assert get_chat_model(model) is model
    assert isinstance(model, Model)


def test_a_dotted_path_is_called_with_the_rest() -> None:
    cfg = {"model_type": "agent_tools.testing:ScriptedModel", "script": ["hi"]}
    assert isinstance(get_chat_model(cfg), ScriptedModel)


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        (None, "No model is given"),
        ({}, "has no 'model'"),
        ({"model": "m", "modelserver": "x"}, "modelserver"),
        ({"model": "m", "model_server": "localhost"}, "not a URL"),
        ({"model": "m", "model_type": "openvino"}, "model_type"),
        ({"model": "m", "model_server": "dashscope"}, "DASHSCOPE_API_KEY"),
        ("agent_tools.nowhere:Model", "cannot be found"),
        ("agent_tools.errors:ModelError", "cannot be created"),
        ("agent_tools.errors:AgentToolsError", "not a model"),
    ],
)
def test_what_means_no_model_is_refused(cfg: object, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        get_chat_model(cfg)  # type: ignore[arg-type]


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("http://h", "secret"))


@pytest.mark.parametrize(("given", "rounds"), [("", 20), ("5", 5), ("0", 20), ("many", 20)])
def test_the_number_of_rounds(given: str, rounds: int) -> None:
    assert settings.max_rounds({"QWEN_AGENT_MAX_LLM_CALL_PER_RUN": given}) == rounds


@pytest.mark.parametrize("option", ["model_server", "base_url", "api_base"])
def test_an_address_that_is_none_is_refused_by_its_own_name(option: str) -> None:
    with pytest.raises(ModelError, match=f"^{option} is not a URL"):
        get_chat_model({"model": "m", option: "foo"})
