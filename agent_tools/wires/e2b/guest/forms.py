"""Adds the forms in which E2B's clients get results: tables and charts as data, lists and dicts as JSON.

It runs once in each kernel. Charts are made where the image has the package e2b-charts.
"""

import importlib
import json
from typing import Any

from IPython import get_ipython
from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode


class TableForm(BaseFormatter):
    """The columns of a table, by name."""

    format_type = Unicode("application/vnd.e2b.data+json")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict


class ChartForm(BaseFormatter):
    """The elements of a figure of matplotlib."""

    format_type = Unicode("application/vnd.e2b.chart+json")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    def pop(self, typ: Any, default: Any = None) -> Any:
        """Keep the form of figures, which IPython drops from each formatter when matplotlib is imported."""
        return default


def data_of(table: Any) -> dict[str, Any]:
    """Return a pandas table as lists by the names of its columns."""
    split = json.loads(table.to_json(orient="split", date_format="iso", default_handler=str))
    return {str(name): [row[place] for row in split["data"]] for place, name in enumerate(split["columns"])}


def chart_of(figure: Any) -> Any:
    """Return a figure as E2B's own package describes it; None if the package is missing or fails."""
    try:
        return importlib.import_module("e2b_charts").chart_figure_to_dict(figure)  # few images have it
    except Exception:  # noqa: BLE001  (the picture of the figure is shown in any case)
        return None


def json_of(value: Any) -> Any:
    """Return a list or dict as JSON has it, None if it has no such form."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return None


def add(display: Any) -> None:
    """Add the forms to the display formatter of a kernel."""
    for kind in (TableForm, ChartForm):
        form = kind(parent=display)
        display.formatters[form.format_type] = form
    for module in ("pandas", "pandas.core.frame"):  # its name in version 3, and before
        display.formatters[TableForm.format_type.default_value].for_type_by_name(module, "DataFrame", data_of)
    display.formatters[ChartForm.format_type.default_value].for_type_by_name("matplotlib.figure", "Figure", chart_of)
    display.formatters["application/json"].for_type(list, json_of)
    display.formatters["application/json"].for_type(dict, json_of)


add(get_ipython().display_formatter)
