"""`python -m agent_tools` is `agent-tools`."""

from agent_tools.cli import main

main()
