"""The values that a run produces: outputs, executions, files, checkpoints. No I/O."""
