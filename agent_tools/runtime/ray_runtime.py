"""The runtime on a Ray cluster: the engine `ray`, from its name."""

from __future__ import annotations

from agent_tools.engines.ray.cluster import RayNodes, join
from agent_tools.engines.ray.engine import SLOT_TIMEOUT, NodesEngine
from agent_tools.runtime.runtime import Runtime


def ray_runtime(word: str = "ray", *, patience: float = SLOT_TIMEOUT) -> Runtime:
    """Return a runtime whose sandboxes run on the nodes of a Ray cluster, which this process joins if it is in none.

    Args:
        word: 'ray', for this process's cluster, else the one in RAY_ADDRESS, else the one on this machine; or
            'ray://HOST:PORT' of a Ray client server.
        patience: seconds that a sandbox waits for a slot where all nodes are full; then HostFull.

    Raises:
        EngineUnavailable: there is no such cluster. None is ever started.
    """
    join(word)
    engine = NodesEngine(RayNodes(), patience)
    return Runtime(engine, engine.image_of)
