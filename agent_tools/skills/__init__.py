"""Agent Skills (agentskills.io): folders with instructions and scripts that a model reads when a task fits them."""
