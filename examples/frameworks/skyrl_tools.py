"""SkyRL: a group of tools that runs the code of a rollout in a sandbox. `reset` makes it fresh for the next one."""

from skyrl_gym.tools.core import ToolGroup, tool

from agent_tools import Sandbox
from agent_tools.integrations.common import text_of
from agent_tools.sandbox.options import Config


class AgentToolsGroup(ToolGroup):
    """The tools `python`, with state, and `shell`."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.sandbox = Sandbox(cfg)
        super().__init__(name="AgentToolsGroup")

    @tool
    def python(self, code: str) -> str:
        return text_of(self.sandbox.run_code(code))

    @tool
    def shell(self, command: str) -> str:
        return "".join(self.sandbox.run_command(command).texts)
