"""Figures that are drawn once and cut out are the stock way's, within a pixel."""

from __future__ import annotations

import io
from pathlib import Path

import numpy
import pytest
from PIL import Image

from agent_tools.results.outputs import Display, TimedOut
from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker

WHITE_NOISE = 24  # of 255: what smoothing may make of a line that lies between two pixels
OFF = 0.003  # the part of all pixels that may differ by more, even from every neighbour

PLAIN = {
    "a plot with labels": "f, a = plt.subplots(); a.plot([1, 2, 3]); a.set(title='t', xlabel='x', ylabel='y')",
    "a title over all": "f, a = plt.subplots(2, 2); f.suptitle('all'); [x.plot([1, 3, 2]) for x in a.flat]",
    "a colour bar": "f, a = plt.subplots(); f.colorbar(a.imshow(numpy.arange(64).reshape(8, 8)))",
    "a constrained layout": "f, a = plt.subplots(2, 2, layout='constrained'); [x.set_title('title') for x in a.flat]",
    "a compressed layout": "f, a = plt.subplots(1, 2, layout='compressed'); [x.imshow([[1, 2]]) for x in a.flat]",
    "a tight layout": "f, a = plt.subplots(2, 2); [x.set_ylabel('label') for x in a.flat]; f.tight_layout()",
    "three dimensions": "plt.figure().add_subplot(projection='3d').plot([1, 2], [2, 1], [1, 2])",
    "polar": "plt.figure().add_subplot(projection='polar').plot([0, 1, 2], [1, 2, 3])",
    "a pie": "plt.pie([1, 2, 3], labels=['one', 'two', 'three'])",
    "to the edges": "plt.figure().add_axes([0, 0, 1, 1]).imshow([[1, 2], [3, 4]], aspect='auto')",
    "a coloured figure": "f, a = plt.subplots(facecolor='#203040'); a.plot([1, 2])",
    "two scales": "f, a = plt.subplots(); a.bar([1, 2], [3, 4]); a.twinx().plot([1, 2], [2, 1]); a.set_title('t')",
    "equal scales": "f, a = plt.subplots(); a.plot([1, 2, 9]); a.set_aspect('equal')",
    "an inset": "f, a = plt.subplots(); a.plot([1, 2]); a.inset_axes([0.5, 0.1, 0.4, 0.3]).plot([2, 1])",
    "divided axes": (
        "from mpl_toolkits.axes_grid1 import make_axes_locatable as m; f, a = plt.subplots(); i = a.imshow([[1, 2]])\n"
        "f.colorbar(i, cax=m(a).append_axes('right', '5%', pad=0.05))"
    ),
    "another resolution": "f, a = plt.subplots(figsize=(5, 3), dpi=137); a.hist([1, 2, 2, 3]); a.grid()",
    "only text": "f = plt.figure(); f.add_axes([0.2, 0.2, 0.1, 0.1]).axis('off'); f.text(0.5, 0.5, 'only text')",
    "figures in a figure": "l, r = plt.figure(layout='constrained').subfigures(1, 2); l.subplots(); r.suptitle('r')",
    "seaborn": "sns.set_theme(); sns.relplot(pd.DataFrame({'x': [1, 2], 'z': ['a', 'b']}), x='x', y='x', hue='z')",
    "another padding": "plt.rcParams['savefig.pad_inches'] = 0.7; plt.plot([1, 2])",
    "an animated artist": "f, a = plt.subplots(); a.plot([1, 2], animated=True)",
    "Chinese": "plt.plot([1, 2]); plt.title('中文')",
}
DRAWN_AGAIN = {
    "a legend outside": (
        "f, a = plt.subplots(); a.plot([1], label='a long one'); a.legend(loc='upper left', bbox_to_anchor=(1.1, 1))"
    ),
    "text outside": "f, a = plt.subplots(); a.text(1.3, -0.5, 'far outside', transform=a.transAxes)",
    "long labels": "plt.bar(['a very long label ' + c * 9 for c in 'abc'], [1, 2, 3]); plt.xticks(rotation=90)",
    "a frame": "f, a = plt.subplots(linewidth=4, edgecolor='red'); a.plot([1, 2])",
    "no background": "f, a = plt.subplots(facecolor='none'); a.plot([1, 2])",
    "half a background": "f, a = plt.subplots(facecolor=(1, 0, 0, 0.5)); a.plot([1, 2])",
    "hatches": "f, a = plt.subplots(); f.patch.set_hatch('/'); a.plot([1, 2])",
    "a constrained layout with a legend outside": (
        "f, a = plt.subplots(layout='constrained'); a.plot([1], label='a long one')\n"
        "a.legend(loc='upper left', bbox_to_anchor=(1.1, 1)).set_in_layout(False); f.text(1.05, 0.5, 'beyond')"
    ),
}
WITH_OPTIONS = {
    "the whole figure": "{'bbox_inches': None}",
    "a padding": "{'bbox_inches': 'tight', 'pad_inches': 0.5}",
    "a face": "{'bbox_inches': 'tight', 'facecolor': 'yellow'}",
}
BOTH = """
from functools import partial
from IPython.core.pylabtools import print_figure
import numpy, random; random.seed(1)
for way in ("stock", "shown"):
    plt.close("all"); plt.rcdefaults(); matplotlib.rc_file("/opt/matplotlib/matplotlibrc")
    {code}
    data = get_ipython().display_formatter.formatters["image/png"](plt.gcf())
    if way == "stock":
        data = partial(print_figure, **{{"fmt": "png", "bbox_inches": "tight", **{options}}})(plt.gcf())
    else:
        import base64; data = base64.b64decode(data)
    plt.close("all")
    open(way + ".png", "wb").write(data)
"""


@pytest.fixture
def tool(shared_tool: CodeInterpreter) -> CodeInterpreter:
    """The shared one, with all settings as they were, and with no figure."""
    shared_tool.call("%matplotlib inline\nimport matplotlib; import numpy; plt; sns; pd")
    shared_tool.call("plt.close('all'); plt.rcdefaults(); matplotlib.rc_file('/opt/matplotlib/matplotlibrc')")
    shared_tool.call("%config InlineBackend.print_figure_kwargs = {'bbox_inches': 'tight'}")
    return shared_tool


def both(tool: CodeInterpreter, code: str, options: str = "{}") -> tuple[numpy.ndarray, numpy.ndarray]:
    """The pixels of a figure, in the stock way and as it is shown."""
    execution = tool.run(BOTH.format(code=code.replace("\n", "\n    "), options=options), timeout=60)
    assert execution.error is None, execution.error.traceback
    stock, shown = (
        numpy.asarray(Image.open(Path(tool.work_dir, f"{way}.png")).convert("RGBA")) for way in ("stock", "shown")
    )
    return stock, shown


def difference(one: numpy.ndarray, other: numpy.ndarray) -> float:
    """The part of `one`'s pixels that lie beyond what the same place in `other`, and all around it, has."""
    around = numpy.pad(other, ((1, 1), (1, 1), (0, 0)), "edge")
    height, width = one.shape[:2]
    views = [around[y : y + height, x : x + width] for y in range(3) for x in range(3)]
    low, high = (extreme.reduce(views).astype("i2") for extreme in (numpy.minimum, numpy.maximum))
    beyond = numpy.maximum(low - one, one - high).max(-1)
    return float((beyond > WHITE_NOISE).mean())


def test_figures_are_the_same_within_a_pixel(tool: CodeInterpreter) -> None:
    found = {}
    for name, code in PLAIN.items():
        stock, shown = both(tool, code)
        assert stock.shape == shown.shape, name
        found[name] = max(difference(stock, shown), difference(shown, stock))
    assert {name: part for name, part in found.items() if part > OFF} == {}


def test_what_cannot_be_cut_out_is_drawn_in_the_stock_way(tool: CodeInterpreter) -> None:
    assert [name for name, code in DRAWN_AGAIN.items() if not numpy.array_equal(*both(tool, code))] == []


def test_options_of_the_users_are_obeyed(tool: CodeInterpreter) -> None:
    for name, options in WITH_OPTIONS.items():
        tool.call(f"%config InlineBackend.print_figure_kwargs = {options}")
        stock, shown = both(tool, "plt.plot([1, 2])", options)
        assert numpy.array_equal(stock, shown), name


def test_a_figure_is_drawn_once(tool: CodeInterpreter) -> None:
    code = "drawn = []\nf, a = plt.subplots(); f.canvas.mpl_connect('draw_event', drawn.append); plt.show()\nlen(drawn)"
    execution = tool.run(code)
    assert len(execution.figures) == 1
    assert execution.result
    assert execution.result.text == "1"


def test_a_figure_is_a_png_of_matplotlibs(tool: CodeInterpreter) -> None:
    (picture,) = tool.run("plt.plot([1, 2]); plt.show()").pictures
    opened = Image.open(io.BytesIO(picture.data))
    assert opened.format == "PNG"
    assert opened.info["Software"].startswith("Matplotlib")
    assert round(opened.info["dpi"][0]) == 100


SLOW = """
result, (line,) = 5, plt.plot([1])
line.draw = weakref.finalize(line, subprocess.run, ["sleep", "60"])  # once, in frames of libraries alone
"""


@pytest.mark.parametrize("before", ["", "await asyncio.sleep(0)", "plt.switch_backend('agg')"])
def test_a_figure_that_is_drawn_at_the_end_of_the_code_ends_at_the_limit(tool: CodeInterpreter, before: str) -> None:
    tool.run("import asyncio, subprocess, weakref\nplt.plot([1])")
    done = tool.run(f"{before}\n{SLOW}", timeout=1)
    assert isinstance(done.error, TimedOut)
    assert done.error.state_kept
    assert tool.run("result").value == 5
    assert len(tool.run("plt.plot([1])").figures) == 1


def test_an_empty_figure_shows_nothing(tool: CodeInterpreter) -> None:
    assert tool.run("plt.figure(); plt.show()").pictures == ()


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("plt.rcParams['font.sans-serif'] = ['SimHei']", "季度 -1 Q"),
        ("plt.rcParams['font.family'] = ['Microsoft YaHei']; plt.rcParams['axes.unicode_minus'] = True", "季度 Q"),
        ("plt.rcParams['font.family'] = 'Arial'", "Latin, 季度, 한국어"),
        ("plt.rcParams['font.family'] = 'Times New Roman'", "Latin"),
        ("plt.rcParams['font.sans-serif'] = ['Helvetica', 'Noto Sans CJK JP']", "日本"),
        ("plt.rcdefaults()", "ภาษาไทย \U0001f680\U0001f4c8\u2705\U0001f916"),
    ],
)
def test_usual_fonts_and_scripts_are_drawn_without_a_word(tool: CodeInterpreter, setting: str, text: str) -> None:
    drawn = f"f, a = plt.subplots(2, 2)\nf.suptitle({text!r}); a[0, 0].plot([-1, 1]); f.tight_layout(); plt.show()"
    code = f"{setting}\n{drawn}"
    assert tool.run(code, timeout=120).stderr == ""


def test_fonts_of_the_same_widths_stand_for_those_that_are_named(tool: CodeInterpreter) -> None:
    code = "from matplotlib.font_manager import findfont\n[findfont(name).rpartition('/')[2] for name in {}]"
    found = tool.run(code.format(["Arial", "Times New Roman:bold", "Courier New", "SimHei", "Malgun Gothic"])).value
    names = ["Sans-Regular", "Serif-Bold", "Mono-Regular"]
    assert found == [*(f"Liberation{name}.ttf" for name in names), "DroidSansFallbackFull.ttf", "NanumSquareR.ttf"]


def test_a_missing_font_or_glyph_is_told_once_in_a_session(tool: CodeInterpreter) -> None:
    code = (
        "plt.rcParams['font.family'] = ['Comic Neue', 'sans-serif']\nf, a = plt.subplots(2, 2)\n"
        "a[0, 0].set_title('\U0001fae0'); plt.savefig('x.png'); plt.show()"
    )
    told = tool.run(code, timeout=120).stderr
    assert told.count("findfont: Font family 'Comic Neue' not found.") == 1
    assert told.count("\nUserWarning: Glyph 129760") == 1
    assert "/" not in told
    assert tool.run(code).stderr == ""


def test_a_glyph_that_is_missing_in_what_is_shown_alone_names_no_path(tool: CodeInterpreter) -> None:
    told = tool.run("plt.title('\U0001fae1'); plt.plot([1]);", timeout=120).stderr
    assert told.startswith("UserWarning: Glyph 129761")
    assert told.count("\n") == 1


def test_small_data_sets_of_seaborns_are_there(tool: CodeInterpreter) -> None:
    code = "import seaborn as sns\n{n: sns.load_dataset(n).shape for n in ('tips', 'iris', 'penguins', 'flights')}"
    shapes = {"tips": (244, 7), "iris": (150, 5), "penguins": (344, 7), "flights": (144, 3)}
    assert tool.run(code, timeout=120).value == shapes
    code = "p = sns.load_dataset('penguins')\np.sex.unique().tolist()[:2], p.species.unique().tolist()"
    assert tool.run(code).value == (["Male", "Female"], ["Adelie", "Chinstrap", "Gentoo"])


FONTS = """
from PIL import ImageFont
names = ["DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "arial.ttf", "Arial.ttf", "arialbd.ttf", "times.ttf", "simhei.ttf"]
paths = ["truetype/dejavu/DejaVuSans.ttf", "truetype/liberation/LiberationSans-Regular.ttf",
         "truetype/liberation2/LiberationMono-Bold.ttf", "truetype/msttcorefonts/Arial_Bold.ttf",
         "opentype/noto/NotoSansCJK-Regular.ttc", "truetype/wqy/wqy-zenhei.ttc"]
for each in names + ["/usr/share/fonts/" + path for path in paths]:
    font = ImageFont.truetype(each, 20)
    assert font.getlength("Hello") > 10, each
chinese = ImageFont.truetype("simhei.ttf", 20)
assert chinese.getmask("\u4e2d").getbbox() != chinese.getmask("\ue000").getbbox()
"""


def test_font_files_are_found_by_their_usual_names_and_paths(shared_tool: CodeInterpreter) -> None:
    execution = shared_tool.run(FONTS)
    assert execution.ok, execution.error


def test_what_chatgpts_models_import_shows_the_table(shared_tool: CodeInterpreter) -> None:
    for module in ("ace_tools", "caas_jupyter_tools"):
        code = f"import {module} as tools; tools.display_dataframe_to_user('Sales', pd.DataFrame({{'n': [41]}}))"
        execution = shared_tool.run(code)
        assert execution.stdout == "Sales:\n"
        assert any("41" in each.text for each in execution.outputs if isinstance(each, Display))


def test_a_gif_that_is_shown_is_a_figure(tool: CodeInterpreter) -> None:
    code = (
        "from PIL import Image as P; from IPython.display import Image\n"
        "P.new('P', (9, 5)).save('a.gif', save_all=True, append_images=[P.new('P', (9, 5), 1)])\nImage('a.gif')"
    )
    (path,) = tool.run(code).figures
    assert path
    assert Path(path).suffix == ".gif"
    assert Path(path).read_bytes().startswith(b"GIF8")
