"""rLLM: its `Sandbox` protocol on one of our sandboxes, for flows that are handed an environment."""

from pathlib import Path

from agent_tools import Sandbox
from agent_tools.sandbox.options import Config


class AgentToolsSandbox:
    """Commands and files; relative paths are below the working directory, and there is one user."""

    def __init__(self, cfg: Config | None = None) -> None:
        self.sandbox = Sandbox(cfg)
        self.sandbox.start()

    def exec(self, command: str, timeout: float | None = None, user: str | None = None) -> str:
        if user:
            raise RuntimeError("There is one user in this sandbox, who is not root: leave `user` out.")
        done = self.sandbox.run_command(command, timeout=timeout)
        out, err = done.texts
        if done.exit_code:
            raise RuntimeError(f"Command failed (exit {done.exit_code}): {command}\n{err}")
        return out

    def upload_file(self, local_path: str, remote_path: str) -> None:
        self.sandbox.write_file(remote_path, Path(local_path).read_bytes())

    def upload_dir(self, local_path: str, remote_path: str) -> None:
        root = Path(local_path)
        for path in sorted(each for each in root.rglob("*") if each.is_file()):
            self.upload_file(str(path), f"{remote_path.rstrip('/')}/{path.relative_to(root).as_posix()}")

    def is_alive(self) -> bool:
        return self.sandbox.is_alive

    def close(self) -> None:
        self.sandbox.close()
