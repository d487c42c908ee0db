"""The module `sandbox`, by which code calls host functions, and through which the host defines stubs."""

import asyncio
import io
import linecache
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from . import preload
from .host_call_errors import KINDS, HostCallError
from .host_calls import Host


def install(descriptor: int, namespace: dict[str, Any]) -> Host:
    """Make `sandbox` and `sandbox.asyncio` importable; return the connection."""
    host = Host(descriptor)
    package, asynchronous = types.ModuleType("sandbox"), types.ModuleType("sandbox.asyncio")
    package.__path__ = []
    provided: dict[str, Any] = {}

    async def hostcall(name: str, payload: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call a host function by its name, with one payload or with arguments."""
        return await host.call(name, (payload, *args), kwargs)

    def hostcall_sync(name: str, payload: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call a host function by its name and wait for it."""
        return host.call_sync(name, (payload, *args), kwargs)

    def define(name: str, source: str) -> None:
        """Make a module from source, and add its public names to the cells' namespace."""
        file = f"<{name}>"
        module = types.ModuleType(name)
        module.__dict__.update(_call=host.call, _call_sync=host.call_sync)
        linecache.cache[file] = (len(source), None, list(io.StringIO(source)), file)
        sys.modules[name] = module
        exec(compile(source, file, "exec"), module.__dict__)
        public = getattr(module, "__all__", [key for key in vars(module) if not key.startswith("_")])
        names = {key: getattr(module, key) for key in public}
        provided.update(names)
        namespace.update(names)

    asynchronous.hostcall = hostcall  # type: ignore[attr-defined]
    asynchronous.run = asyncio.run  # type: ignore[attr-defined]
    package.asyncio, package.hostcall, package.define = asynchronous, hostcall_sync, define  # type: ignore[attr-defined]
    package.save_variables = partial(_save_variables, provided)  # type: ignore[attr-defined]
    package.load_variables = _load_variables  # type: ignore[attr-defined]
    package.warm_up = preload.use  # type: ignore[attr-defined]
    package.run_function = _function_runner(host, namespace)  # type: ignore[attr-defined]
    package.HostCallError = HostCallError  # type: ignore[attr-defined]
    vars(package).update(KINDS)
    sys.modules.update({"sandbox": package, "sandbox.asyncio": asynchronous})
    return host


def _save_variables(provided: dict[str, Any], address: str, *bounds: Any) -> None:
    """Send the variables, except those that the host has `provided`, to the listener at an address."""
    from .variables import saving  # heavy, and most sessions never need it

    saving.begin(address, saving.Bounds(*bounds), provided)


def _load_variables(address: str, seconds: float) -> None:
    """Set the variables that the listener at an address sends."""
    from .variables import loading  # heavy, and most sessions never need it

    loading.load(address, seconds)


def _function_runner(host: Host, namespace: dict[str, Any]) -> Callable[[str, bool, bool], Any]:
    async def run_function(name: str, has_args: bool, is_streamed: bool) -> None:
        """Call a function of the script with the host's arguments; send the host its result and yielded values."""
        args, kwargs = await host.call("$arguments", (), {}) if has_args else ((), {})
        if name not in namespace:
            raise NameError(f"the script defines no {name!r}")
        found = namespace[name]
        result = found(*args, **kwargs) if callable(found) else found
        if hasattr(result, "__await__"):
            result = await result
        if hasattr(result, "__aiter__"):
            async for item in result:
                if is_streamed:
                    await host.call("$yield", (item,), {})
            result = None
        elif isinstance(result, types.GeneratorType):
            for item in result:
                if is_streamed:
                    await host.call("$yield", (item,), {})
            result = None
        await host.call("$return", (result,), {})

    return run_function
