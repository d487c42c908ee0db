"""A matplotlib backend for scripts: `plt.show()` writes each figure to a file, figure-001.png and so on.

Chosen by MPLBACKEND=module://agent_tools_guest.figure_files. As with windows, shown figures are closed; with
`block=False` they stay open, and showing one again rewrites its file.
"""

import os
import re
from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

_NAME = re.compile(r"figure-(\d{3,9})\.(png|jpg)")


class FigureManager(FigureManagerBase):
    """A figure, and the file that it is shown in."""

    path = ""

    def show(self) -> None:
        """Write the figure to its file in the current folder."""
        self.path = self.path or _new_file()
        self.canvas.figure.savefig(self.path, format="png", bbox_inches="tight")

    @classmethod
    def pyplot_show(cls, *, block: "bool | None" = None) -> None:
        """Show all figures, and close them unless `block` is False."""
        for manager in Gcf.get_all_fig_managers():
            if manager.canvas.figure.axes or manager.canvas.figure.get_children()[1:]:  # beside the background
                manager.show()
        if block is not False:
            Gcf.destroy_all()


class FigureCanvas(FigureCanvasAgg):
    """Draws with Agg."""

    manager_class: Any = FigureManager


def _new_file() -> str:
    """Make an empty file under the first number after all that are taken."""
    taken = [int(found[1]) for name in os.listdir() if (found := _NAME.fullmatch(name))]
    number = max(taken, default=0)
    while True:
        number += 1
        path = os.path.abspath(f"figure-{number:03d}.png")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            continue
        return path
