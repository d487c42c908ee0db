"""The image that an engine under test runs."""

from agent_tools.engines.context import tag_for
from agent_tools.engines.engine import Engine
from tests.doubles import ProcessEngine


def image_of(engine: Engine) -> str:
    """Its name; any word where there are no images."""
    return "none" if isinstance(engine, ProcessEngine) else tag_for()
