"""Runs what public skills tell a model to run, in the flavours of the image, and prints a table of what worked.

    scripts/try skills FOLDER... [--flavour FLAVOUR]...

The folders are of skills, such as those of https://github.com/anthropics/skills: nothing of them is in this repository.
What failed is told with the end of what it said. Exit code 1: something failed in `office` that is not known to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from agent_tools.engines.recipe import FLAVOURS
from agent_tools.sandbox import Sandbox

INPUTS = """
import docx, pptx, openpyxl
from reportlab.pdfgen import canvas
document = docx.Document(); document.add_paragraph('Forty-two words.'); document.save('in.docx')
slides = pptx.Presentation(); slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = 'Forty-two'
slides.save('in.pptx')
book = openpyxl.Workbook(); book.active.append([1, 2, '=A1+B1']); book.save('in.xlsx')
page = canvas.Canvas('in.pdf'); page.drawString(72, 720, 'Forty-two:'); page.acroForm.textfield(name='n', x=150, y=710)
page.save()
"""
"""Makes what the commands work on; this needs `full`."""
FILES = ("in.docx", "in.pptx", "in.xlsx", "in.pdf")
_DOCX = "const d = require('docx'); d.Packer.toBuffer(new d.Document({sections: [{children: []}]})).then(b => b.length)"
_PPTX = "const s = new (require('pptxgenjs'))(); s.addSlide(); s.writeFile({fileName: 'new.pptx'})"
_GIF = (
    "from core.gif_builder import GIFBuilder; from PIL import Image; b = GIFBuilder(width=128, height=128, fps=10); "
    "[b.add_frame(Image.new('RGB', (128, 128), (n * 20, 0, 0))) for n in range(9)]; b.save('out.gif', num_colors=48)"
)
COMMANDS = {
    "docx": (
        "python $S/scripts/office/unpack.py in.docx d",
        "python $S/scripts/comment.py d 0 'A comment'",
        "python $S/scripts/office/pack.py d out.docx --original in.docx",
        "python $S/scripts/office/validate.py out.docx --original in.docx",
        "python $S/scripts/accept_changes.py in.docx accepted.docx",
        f'node -e "{_DOCX}"',
    ),
    "pdf": (
        "python $S/scripts/check_fillable_fields.py in.pdf",
        "python $S/scripts/extract_form_field_info.py in.pdf fields.json",
        "python $S/scripts/extract_form_structure.py in.pdf structure.json",
        "mkdir -p pages && python $S/scripts/convert_pdf_to_images.py in.pdf pages",
        "pdftotext in.pdf - | grep Forty-two && qpdf --check in.pdf && pdftoppm -r 200 -png in.pdf page && "
        "tesseract page-1.png - | grep Forty",
    ),
    "xlsx": (
        "python $S/scripts/recalc.py in.xlsx | grep success",
        "python $S/scripts/office/unpack.py in.xlsx x && python $S/scripts/office/pack.py x out.xlsx",
    ),
    "pptx": (
        "python -m markitdown in.pptx | grep Forty-two",
        "python $S/scripts/office/unpack.py in.pptx p && python $S/scripts/add_slide.py p slide1.xml && "
        "python $S/scripts/clean.py p && python $S/scripts/office/pack.py p out.pptx",
        "python $S/scripts/thumbnail.py in.pptx",
        f'node -e "{_PPTX}"',
    ),
    "slack-gif-creator": (f'PYTHONPATH=$S python -c "{_GIF}"',),
    "skill-creator": (
        "python $S/scripts/quick_validate.py /skills/pdf",
        "here=$PWD; cd $S && python -m scripts.package_skill /skills/pdf $here",
    ),
    "webapp-testing": (
        "python $S/scripts/with_server.py --server 'python -m http.server 8123' --port 8123 -- python -c 1",
        "python $S/examples/element_discovery.py",
    ),
    "mcp-builder": ("python $S/scripts/evaluation.py --help",),
    "gh-fix-ci": ("python $S/scripts/inspect_pr_checks.py --help", "gh --version"),
    "web-artifacts-builder": ("bash $S/scripts/init-artifact.sh page",),
}
"""The commands of each skill, in order, with $S for its folder. Some use what an earlier one wrote."""
IMPOSSIBLE = ("webapp-testing", "mcp-builder", "gh-fix-ci", "web-artifacts-builder")
"""Skills that need a browser, a network or a key."""
SHOWN = 160  # characters of what a command that failed said last
SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, print the table and the failures, and return an exit code."""
    parser = argparse.ArgumentParser(prog="scripts/try skills", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a folder of skills")
    parser.add_argument("--flavour", dest="flavours", action="append", choices=FLAVOURS)
    given = parser.parse_args(arguments)
    flavours = given.flavours or ["lean", "full", "office"]
    with Sandbox(flavour="full") as sandbox:
        if error := sandbox.run_code(INPUTS).error:
            sys.exit(f"skills: the inputs could not be made: {error.text}")
        inputs = {name: sandbox.read_file(name) for name in FILES}
    found = {flavour: dict(tried(flavour, given.folders, inputs)) for flavour in flavours}
    print(f"| skill | {' | '.join(flavours)} |\n|---|{'---|' * len(flavours)}")
    for name, commands in COMMANDS.items():
        ran = [f"{sum(not each for each in found[flavour][name])} of {len(commands)}" for flavour in flavours]
        print(f"| {name} | {' | '.join(ran)} |")
    for flavour in flavours:
        failed = [(name, *each) for name, said in found[flavour].items() for each in enumerate(said) if each[1]]
        print("", *(f"{flavour}, {name}, {number + 1}: {said}" for name, number, said in failed), sep="\n")
    return int(any(any(said) for name, said in found.get("office", {}).items() if name not in IMPOSSIBLE))


def tried(flavour: str, folders: Sequence[str], inputs: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Yield each skill with what its commands said that failed, '' for one that did not."""
    with Sandbox(flavour=flavour, skills=folders) as sandbox:
        for name, data in inputs.items():
            sandbox.write_file(name, data)
        for skill, commands in COMMANDS.items():
            said = []
            for command in commands:
                done = sandbox.run_command(f"export S=/skills/{skill}; {command}", timeout=SECONDS)
                lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines() or [""]
                said.append("" if done.exit_code == 0 else f"exit code {done.exit_code}: {lines[-1]:.{SHOWN}}")
            yield skill, said


if __name__ == "__main__":
    sys.exit(main())
