"""Jupyter's REST and websocket API, by Jupyter's kernel gateway: every kernel runs in a sandbox.

Format: https://jupyter-kernel-gateway.readthedocs.io/en/latest/websocket-mode.html
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_client import kernelspec as stock
from kernel_gateway.gatewayapp import KernelGatewayApp
from tornado.httputil import HTTPServerRequest
from traitlets import Instance
from traitlets.config import Config as TraitsConfig

from agent_tools.jupyter.connection import make_private_folder
from agent_tools.jupyter.kernelspec import NAME, KernelSpec
from agent_tools.jupyter.unknown_clients import UnknownClients
from agent_tools.machine.removal import remove_tree

NAMES = (NAME, "python3")  # under which the one kernel is offered: many clients ask for the second
NO_RESOURCES = "/nonexistent"  # a kernelspec's folder of icons
CULL_EVERY = 30  # seconds between two looks for unused kernels


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server."""

    token: str = field(repr=False)
    """The token that every request must have."""
    spec: KernelSpec = field(default_factory=lambda: KernelSpec(work_dir="fresh"))
    host: str = "127.0.0.1"
    port: int = 8888
    max_kernels: int = 16
    """More are refused."""
    idle_timeout: float = 3600.0
    """Seconds after which an unused kernel is ended, connected or not."""
    lists_kernels: bool = False
    """Whether clients may see the kernels of others."""


def serve(config: ServerConfig) -> None:
    """Serve until SIGINT or SIGTERM; then end every kernel.

    Raises:
        OSError: the port is taken.
    """
    folder = make_private_folder()
    try:
        app = _Server(config=_traits(config), runtime_dir=str(folder))
        app.initialize([])
        app.start()
    finally:
        remove_tree(folder)


def _traits(config: ServerConfig) -> TraitsConfig:
    traits = TraitsConfig()
    traits.KernelGatewayApp.update(
        ip=config.host,
        port=config.port,
        port_retries=0,
        auth_token=config.token,
        max_kernels=config.max_kernels,
        force_kernel_name=NAME,
        default_kernel_name=NAME,
        kernel_spec_manager_class=OneKernelSpec,
        env_process_whitelist=[],
    )
    traits.OneKernelSpec.spec = replace(config.spec, options={})  # clients see it, and options may hold secrets
    traits.SandboxProvisioner.options = config.spec.options
    traits.JupyterWebsocketPersonality.update(list_kernels=config.lists_kernels, env_whitelist=[])
    traits.MappingKernelManager.update(
        cull_idle_timeout=int(config.idle_timeout),
        cull_interval=CULL_EVERY,
        cull_connected=True,
        buffer_offline_messages=False,  # which has no bound
    )
    return traits


class _Server(KernelGatewayApp):  # type: ignore[misc,unused-ignore]
    """The kernel gateway without configuration files of the machine, so that no other kernel is added."""

    name = "agent-tools-jupyter"
    classes = [*KernelGatewayApp.classes]  # noqa: RUF012  (as traitlets has it)

    def load_config_file(self, *_: Any, **__: Any) -> None:
        """Read none."""

    def init_webapp(self) -> None:
        """Also accept the token in the form of RFC 6750, for newer clients; keep a token in a URL out of the log."""
        super().init_webapp()
        find_handler = self.web_app.find_handler

        def with_token(request: HTTPServerRequest, **options: Any) -> Any:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() == "bearer":
                request.headers["Authorization"] = f"token {token}"
            self._unknown.look_at(request)
            request.uri = request.path  # what the log shows; handlers read the query's arguments, parsed before this
            return find_handler(request, **options)

        self.web_app.find_handler = with_token

    def init_http_server(self) -> None:
        """Listen, and limit clients that do not have the token."""
        super().init_http_server()
        self._unknown = UnknownClients(self.http_server, self.auth_token)


class OneKernelSpec(stock.KernelSpecManager):  # type: ignore[misc,unused-ignore]
    """Knows one kernelspec, and ignores others that are installed."""

    spec: Any = Instance(KernelSpec).tag(config=True)

    def find_kernel_specs(self) -> dict[str, str]:
        """Return its names, with the folder of its resources."""
        return dict.fromkeys(NAMES, NO_RESOURCES)

    def get_kernel_spec(self, kernel_name: str) -> stock.KernelSpec:
        """Return the only spec.

        Raises:
            NoSuchKernel: the name is another one.
        """
        if kernel_name not in NAMES:
            raise stock.NoSuchKernel(kernel_name)
        return stock.KernelSpec(resource_dir=NO_RESOURCES, **self.spec.content())
