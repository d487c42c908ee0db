"""The provisioner: JupyterLab, Notebook, nbclient, papermill, nbconvert and the console start kernels in sandboxes.

Jupyter finds it by its entry point, where a kernelspec names it. No port is opened: clients connect to sockets in a
folder that only this user may enter. https://jupyter-client.readthedocs.io/en/stable/provisioning.html
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import KernelProvisionerBase
from traitlets import Dict, Unicode

from agent_tools.errors import InvalidParams
from agent_tools.jupyter.connection import SCHEME, ConnectionInfo, make_private_folder
from agent_tools.jupyter.kernelspec import is_plain, sandbox_config
from agent_tools.jupyter.served_kernel import ServedKernel
from agent_tools.machine.removal import remove_tree

CHECK_SECONDS = 0.05  # seconds between two checks whether a kernel has ended


class SandboxProvisioner(KernelProvisionerBase):  # type: ignore[misc,unused-ignore]
    """Runs kernels in sandboxes; a sandbox outlives a restart of its kernel, and ends with this process."""

    work_dir: Any = Unicode("cwd", help="'cwd': the folder of the notebook; 'fresh': an empty one of its own").tag(
        config=True
    )
    outputs: Any = Unicode("all", help="'all', or 'plain': without HTML, scripts and widgets").tag(config=True)
    options: Any = Dict(help="Options of `Sandbox`, by name").tag(config=True)

    _served: ServedKernel | None = None
    _folder: Path | None = None
    _cwd = ""

    @property
    def has_process(self) -> bool:
        """True while a kernel runs."""
        return self._served is not None and self._served.exit_code is None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Store the folder of the notebook; no command is needed."""
        kwargs.pop("extra_arguments", None)
        if kwargs.pop("transport_encryption", None) == "required":
            raise InvalidParams("Transport encryption is for TCP; these kernels are reached by private sockets.")
        self._cwd = str(kwargs.get("cwd") or os.getcwd())
        kept: dict[str, Any] = await super().pre_launch(cmd=["agent-tools"], **kwargs)
        return kept

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start a kernel; return the connection for its clients.

        Raises:
            InvalidParams: the folder of the notebook does not exist.
            AgentToolsError: the sandbox or the kernel could not be started.
        """
        await asyncio.to_thread(self._launch)
        return self.connection_info

    def _launch(self) -> None:
        if self.work_dir == "cwd" and not os.path.isdir(self._cwd):
            raise InvalidParams(f"The kernel's folder {self._cwd!r:.200} does not exist: make it, or name another one.")
        session = self.parent.session
        self._folder = self._folder or make_private_folder()
        cfg = sandbox_config(self.options, self.work_dir, self._cwd)
        self._served = self._served or ServedKernel(cfg, is_plain=is_plain(self.outputs))
        info = ConnectionInfo.private(self._folder, session.key, session.signature_scheme or SCHEME)
        self._served.start(info)
        self.connection_info = info.as_dict()

    async def post_launch(self, **kwargs: Any) -> None:
        """Write the connection file, for further clients such as `jupyter console --existing`."""
        self.parent.write_connection_file()

    async def poll(self) -> int | None:
        """Return None while the kernel runs, its exit code afterwards."""
        return self._served.exit_code if self._served else 0

    async def wait(self) -> int | None:
        """Wait for the kernel's end; return its exit code."""
        while (code := await self.poll()) is None:  # noqa: ASYNC110  (it ends in a thread)
            await asyncio.sleep(CHECK_SECONDS)
        return code

    async def send_signal(self, signum: int) -> None:
        """Interrupt the code for SIGINT; end the kernel for SIGTERM and SIGKILL. Others are not for kernels."""
        if self._served and signum == signal.SIGINT:
            self._served.interrupt()
        elif signum in (signal.SIGTERM, signal.SIGKILL):
            await self.kill()

    async def kill(self, restart: bool = False) -> None:
        """End the kernel."""
        if self._served:
            await asyncio.to_thread(self._served.kill)

    async def terminate(self, restart: bool = False) -> None:
        """End the kernel, without asking the code."""
        await self.kill(restart)

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the sandbox, unless a kernel is to follow."""
        if not restart and (self._served or self._folder):  # else, as after a refusal, it may be the interpreter's end
            await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        served, self._served = self._served, None
        folder, self._folder = self._folder, None
        if served:
            served.close()
        if folder:
            remove_tree(folder)
