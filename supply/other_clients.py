"""The clients of the gateway that `scripts/try clients` tries, with their versions and the end of their output."""

from __future__ import annotations

from dataclasses import dataclass

KEPT = ("The end: x is 41", "The end: x is 42")
"""The answers to two questions, if code ran in both and the second found the variable of the first."""
PASSED_ON = ("The end: passed on",)
"""The answer that a model gives to a client whose tools are its own, if it has any."""
ITS_OWN = ("The end: its own 42",)
"""The answer to a client whose own command the model had called: it ran there, and its output came back."""


@dataclass(frozen=True)
class Client:
    """One client.

    Attributes:
        title: what of it is tried.
        packages: its distributions, pinned; of npm, if its script is one of Node.
        script: the file in `tests/other_clients`.
        says: what its script reports if all is well.
        settings: those of the gateway that it needs.
        reason: the sentence that says why it cannot do more, for one that does not keep state.
    """

    title: str
    packages: tuple[str, ...]
    script: str
    says: tuple[str, ...] = KEPT
    settings: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_node(self) -> bool:
        """True if it is a client of Node."""
        return self.script.endswith(".mjs")


FRAMEWORKS = ("pydantic-ai", "llama-index", "agno", "strands", "agent-framework", "openai-agents")
"""Agents that `scripts/try integrations NAME -k openais_code` tries: code, their own function, code, a second turn."""
CLIENTS = {
    "haystack": Client("Haystack, `OpenAIResponsesChatGenerator`", ("haystack-ai==3.4.1",), "haystack_client.py"),
    "semantic-kernel": Client(
        "Semantic Kernel, `OpenAIResponsesAgent`", ("semantic-kernel==1.45.0",), "semantic_kernel_client.py"
    ),
    "crewai": Client('CrewAI, `LLM(api="responses")`', ("crewai==1.15.30",), "crewai_client.py"),
    "litellm": Client("LiteLLM, `litellm.responses`", ("litellm==1.110.2",), "litellm_sdk_client.py"),
    "litellm-proxy": Client(
        "`openai` by LiteLLM's proxy, streamed", ("litellm[proxy]==1.106.2",), "litellm_proxy_client.py"
    ),
    "open-webui": Client("Open WebUI, `api_type: responses`: its requests", (), "open_webui_client.py"),
    "llama-index-ts": Client(
        "LlamaIndex.TS, `openaiResponses`",
        ("@llamaindex/openai@0.4.23", "@llamaindex/core@0.6.23", "@llamaindex/env@0.1.31"),
        "llama_index_ts.mjs",
    ),
    "mastra": Client(
        "Mastra, an agent with the AI SDK's tool", ("@mastra/core@1.71.0", "@ai-sdk/openai@4.0.118"), "mastra.mjs"
    ),
    "codex": Client(
        "Codex CLI, `codex exec`",
        ("@openai/codex@0.171.0",),
        "codex.mjs",
        ITS_OWN,
        ("unknown_tools=ignore",),
        "Its tools are its own, and run where it runs.",
    ),
    "opencode": Client(
        "opencode, `opencode run`",
        ("opencode-ai@1.18.33",),
        "opencode.mjs",
        PASSED_ON,
        reason="Its tools are its own, and run where it runs.",
    ),
    "adk": Client(
        "Google's ADK by LiteLLM, a function of its own",
        ("google-adk==2.13.0", "litellm==1.110.2", "mcp==2.3.0"),
        "adk_client.py",
        ITS_OWN,
        reason="It speaks chat completions, and has no way to name OpenAI's tool: its functions are its own.",
    ),
    "inspect": Client(
        "Inspect, `code_execution()`",
        ("inspect-ai==0.3.285", "openai==3.57.0"),
        "inspect_ai_client.py",
        PASSED_ON,
        reason="To a model whose name it does not know it offers a function of its own, and not OpenAI's tool.",
    ),
    "instructor": Client(
        "instructor, `RESPONSES_TOOLS`",
        ("instructor==1.17.0",),
        "instructor_client.py",
        PASSED_ON,
        reason="It asks for an answer's form by a function; it takes built-in tools out of its other mode itself.",
    ),
    "smolagents": Client(
        "smolagents, `OpenAIModel`",
        ("smolagents[openai]==1.26.0",),
        "smolagents_client.py",
        PASSED_ON,
        reason="It runs its agents' code itself: in our sandbox with [its adapter](integrations/smolagents.md).",
    ),
    "azure": Client("`openai.AzureOpenAI` with an `azure_endpoint`", ("openai==3.57.0",), "azure_client.py"),
    "azure-node": Client("`AzureOpenAI` of `openai` for Node", ("openai@7.59.0",), "azure.mjs"),
    "langchain-js": Client(
        'LangChain.js, `ChatOpenAI` with `outputVersion: "v1"`',
        ("@langchain/openai@1.6.0", "@langchain/core@1.4.0"),
        "langchain_js.mjs",
    ),
    "open-responses": Client(
        "the AI SDK's provider for Open Responses",
        ("@ai-sdk/open-responses@2.0.36", "ai@7.0.173"),
        "open_responses.mjs",
        PASSED_ON,
        reason="It has no built-in tools.",
    ),
    "autogen": Client(
        "AutoGen, `OpenAIAgent`",
        ("autogen-ext[openai]==0.7.5", "autogen-agentchat==0.7.5"),
        "autogen_client.py",
    ),
    "any-llm": Client("any-llm, `responses`", ("any-llm-sdk[openai]==1.40.2",), "any_llm_client.py"),
    "dspy": Client('DSPy, `LM(model_type="responses")`', ("dspy==3.4.1",), "dspy_client.py"),
    "mirascope": Client(
        "Mirascope, `openai/...:responses`",
        ("mirascope[openai]==2.8.2",),
        "mirascope_client.py",
        PASSED_ON,
        reason="It has no built-in tools.",
    ),
    "magentic": Client(
        "magentic, `OpenaiChatModel`",
        ("magentic==0.41.1",),
        "magentic_client.py",
        PASSED_ON,
        reason="It speaks chat completions, and its functions are its own.",
    ),
    "anthropic": Client(
        "Anthropic's SDK, messages, a stream and a count of tokens",
        ("anthropic==2.14.0",),
        "anthropic_client.py",
        (*PASSED_ON, *PASSED_ON, "7", "not_found_error"),
        ("speaks=messages",),
        "Its requests are passed on to an upstream that has Anthropic's API; its tools are its own.",
    ),
    "claude-code": Client(
        "Claude Code, `claude -p`",
        ("@anthropic-ai/claude-code@2.1.332",),
        "claude_code.mjs",
        PASSED_ON,
        ("speaks=messages",),
        "Its requests are passed on to an upstream that has Anthropic's API; its tools are its own.",
    ),
    "llm": Client(
        "`llm`, the command, and its conversation",
        ("llm==0.36",),
        "llm_cli_client.py",
        (*PASSED_ON, *PASSED_ON),
        reason="It has no built-in tools.",
    ),
}
