"""Stand-ins for modules that a kernel imports but rarely uses: each is imported at its first use.

Theory of operation
    ipykernel and what it stands on import libzmq, tornado, ssl, dateutil, clients and managers, of which this kernel
    uses nothing: a boot takes 200 ms with stand-ins and 259 ms without (row "new instance to first result" of
    `benchmarks/latency.py`). While the kernel is imported (`stand_ins`) such a module has a stand-in in
    `sys.modules`, and what is taken from it by name is a `Name`. Then the stand-ins leave `sys.modules`: code that
    imports the module gets the module. A user of a stand-in or of a name keeps it, and it passes uses on to the module.

    A module that must stay, since submodules were imported, is `Deferred`: it runs its own code when it is
    first asked for a name that it does not have.
"""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_lock = threading.RLock()


class Name:
    """Stands for one name of a module: for a function that is called, or a class that is called or asked about."""

    def __init__(self, module: str, name: str) -> None:
        self.__dict__.update(_module=module, _name=name)

    def _real(self) -> Any:
        return getattr(_imported(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what has the name."""
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __getitem__(self, parameters: Any) -> Any:
        """Stand for the class with parameters, which annotations name."""
        return self

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._real())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)


class StandIn(ModuleType):
    """Stands for a module: gives names while it is in `sys.modules`, and afterwards what the module has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            return Name(self.__name__, name)
        return getattr(import_module(self.__name__), name)


class Deferred(ModuleType):
    """A module that has not run its own code yet; its submodules can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with _lock:
            if self.__class__ is Deferred:
                self.__class__ = ModuleType  # type: ignore[assignment]
                assert self.__spec__
                assert self.__spec__.loader
                self.__spec__.loader.exec_module(self)
        return getattr(self, name)


class NoStream:
    """Stands for ZeroMQ's stream where only the class of an attribute is named; there are no such streams here."""


class Sent:
    """Stands for ZeroMQ's tracker of a message that has been sent."""

    done = True


STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "zmq": {"MessageTracker": Sent},
    "zmq.asyncio": {},
    "zmq.eventloop": {},
    "zmq.eventloop.zmqstream": {"ZMQStream": NoStream},
    "tornado": {},
    "tornado.ioloop": {},
    "dateutil": {},
    "dateutil.parser": {},
    "dateutil.tz": {},
    "jupyter_core": {},
    "jupyter_core.paths": {},
    "ipykernel.connect": {
        "__all__": ("connect_qtconsole", "get_connection_file", "get_connection_info", "write_connection_file"),
    },
    "ipykernel.eventloops": {"_use_appnope": lambda: False},
    "logging.config": {},
    "ssl": {},
    "asyncio.sslproto": {},
}
"""Modules, and what they have to have at once, since it is used while the kernel is imported."""


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within it, the modules are stand-ins, unless they have been imported already."""
    made = {name: _stand_in(name, given) for name, given in STAND_INS.items() if name not in sys.modules}
    _defer("jupyter_client")
    try:
        yield
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
                _put_into_package(module)
        _defer("ipykernel.debugger", _is_debugpy_available=False)  # a debugger needs ptrace, which is refused


def _stand_in(name: str, given: Mapping[str, Any]) -> ModuleType:
    module = StandIn(name)
    module.__path__ = []  # so that its submodules are looked for, which are stand-ins as well
    module.__dict__.update(given)
    sys.modules[name] = module
    _put_into_package(module)
    return module


def _put_into_package(module: ModuleType) -> None:
    """Make a module an attribute of its package, as importing it would."""
    package, _, name = module.__name__.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).setdefault(name, module)


def _defer(name: str, **given: Any) -> None:
    """Put a module off, unless it is not there, or imported already."""
    if name in sys.modules or not (spec := find_spec(name)):
        return
    module = Deferred(name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    module.__package__ = name if spec.submodule_search_locations else spec.parent
    if spec.submodule_search_locations:
        module.__path__ = list(spec.submodule_search_locations)
    module.__dict__.update(given)
    sys.modules[name] = module
    _put_into_package(module)


def _imported(name: str) -> ModuleType:
    """The module itself.

    Raises:
        ImportError: it is used while the kernel is imported, so it cannot be put off.
    """
    module = import_module(name)
    if isinstance(module, StandIn):
        raise ImportError(f"{name} is needed at once and cannot be put off")
    return module
