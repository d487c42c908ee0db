"""What models that know ChatGPT's interpreter import to show a table or a chart to the user."""

from typing import Any

from IPython.display import Image, display


def display_dataframe_to_user(name: str, dataframe: Any = None, **_: object) -> None:
    """Show a table under its name."""
    print(f"{name}:")
    display(dataframe)


def display_chart_to_user(path: str = "", title: str = "", *_: object, **__: object) -> None:
    """Show a picture under its title."""
    print(f"{title or path}:")
    display(Image(path))


def log_exception(*_: object, **__: object) -> None:
    """Do nothing: errors are shown anyway."""


def log_matplotlib_img_fallback(*_: object, **__: object) -> None:
    """Do nothing: figures are shown anyway."""
