"""What a model reads of frequent failures: characters here, and of a stock ipykernel's messages in the same image.

    .venv/bin/python benchmarks/errors.py [IMAGE]

All cells run in one kernel here, and in one stock kernel in a container without a network, with %reset between. Of the
stock kernel all text is counted that a simple harness hands on: streams, results and the traceback, as it comes and
without its escape sequences. Prints a table in Markdown; tokens are characters divided by four.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).resolve().parents[1]))

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.tools import CodeInterpreter

FRAME = "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2, None], 'b': list('xyz')})\n"
DRAWN = "import matplotlib.pyplot as plt\n"
FAILURES = {
    "missing package": "import torch",
    "missing module of a package": "from sklearn.cross_validation import train_test_split",
    "package that reads HTML": "import pandas as pd\npd.read_html('https://example.org')",
    "pip in a subprocess": (
        "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'x-y'])"
    ),
    "missing file": FRAME + "pd.read_csv('/content/sales.csv')",
    "missing column": FRAME + "df['sales']",
    "missing columns": FRAME + "df[['a', 'sales']]",
    "merge on another type": FRAME + "df.merge(df.assign(a='q'), on='a')",
    "text as a number": FRAME + "df['b'].astype(float)",
    "date that is none": "import pandas as pd\npd.to_datetime(['2024-13-45'])",
    "aggregate of text": FRAME + "df.groupby('a').mean()",
    "shapes that do not match": "import numpy as np\nnp.ones((3, 4)) @ np.ones((3, 4))",
    "array too large": "import numpy as np\nnp.zeros((10**6, 10**6))",
    "NaN in a model": FRAME
    + "from sklearn.linear_model import LinearRegression\nLinearRegression().fit(df[['a']], [1, 2, 3])",
    "text in a model": FRAME
    + "from sklearn.linear_model import LinearRegression\nLinearRegression().fit(df[['b']], [1, 2, 3])",
    "plot of other lengths": DRAWN + "plt.plot([1, 2, 3], [1, 2])",
    "fonts that are not there": DRAWN
    + "plt.rcParams['font.sans-serif'] = ['SimHei', 'Comic Neue']\nplt.title('季度'); plt.plot([-1, 1]); plt.show()",
    "network": "import requests\nrequests.get('https://example.org')",
    "network of a table": "import pandas as pd\npd.read_csv('https://example.org/a.csv')",
    "name": "print(reslut)",
    "attribute": "import pandas as pd\npd.DataFrame().appendd(1)",
    "key of a dict": "{'a': 1}['b']",
    "syntax": "for i in range(3)\n    print(i)",
    "recursion": "def f(n):\n    return f(n + 1)\nf(0)",
    "input": "name = input('Name: ')",
    "asyncio.run": "import asyncio\nasync def main():\n    return 5\nasyncio.run(main())",
    "bars in a notebook": "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass",
}
STOCK = r"""
import json, re, sys
from jupyter_client.manager import start_new_kernel
told = {}
manager, client = start_new_kernel(kernel_name="python3", startup_timeout=300)
for name, code in json.load(sys.stdin).items():
    texts = []
    def take(message):
        content = message["content"]
        if message["msg_type"] == "stream": texts.append(content["text"])
        if message["msg_type"] == "error": texts.append("\n".join(content["traceback"]))
        if "data" in content and message["msg_type"] != "comm_open": texts.append(content["data"].get("text/plain", ""))
    client.execute_interactive(code, allow_stdin=False, output_hook=take, timeout=300)
    text = "\n".join(texts)
    told[name] = len(text), len(re.sub(r"\x1b\[[0-9;]*m", "", text))
    client.execute_interactive("%reset -f", output_hook=lambda message: None, timeout=300)
manager.shutdown_kernel(now=True)
print(json.dumps(told))
"""


def main() -> None:
    tag = sys.argv[1] if len(sys.argv) > 1 else image.ensure(DockerEngine(), ())
    stock = _stock(tag)
    print("| failure | here | stock, without escapes | stock |\n|---|--:|--:|--:|")
    rows = [(name, here, *reversed(stock[name])) for name, here in _here(tag).items()]
    for name, here, plain, whole in rows:
        print(f"| {name} | {here:,} | {plain:,} | {whole:,} |")
    here, plain, whole = (sum(row[column] for row in rows) for column in (1, 2, 3))
    print(f"| all {len(rows)} | {here:,} | {plain:,} | {whole:,} |")
    print(f"| in tokens | {here // 4:,} | {plain // 4:,} | {whole // 4:,} |")


def _here(tag: str) -> dict[str, int]:
    """The characters of the answers that a model gets; figures are not text."""
    lengths = {}
    with (
        TemporaryDirectory(prefix="agent-tools-errors-") as folder,
        CodeInterpreter({"work_dir": folder, "image": tag}) as tool,
    ):
        for name, code in FAILURES.items():
            lengths[name] = len(tool.call({"code": code}).replace(folder, ""))
            tool.call({"code": "%reset -f"})
    return lengths


def _stock(tag: str) -> dict[str, tuple[int, int]]:
    command = ["docker", "run", "--rm", "-i", "--network", "none", "--env", "HOME=/tmp", "--env", "MPLCONFIGDIR=/tmp/m"]
    command += ["--env", "MATPLOTLIBRC=/opt/matplotlib/matplotlibrc", "--tmpfs", "/tmp", tag]
    done = subprocess.run(
        [*command, "/opt/kernel/bin/python", "-c", STOCK], input=json.dumps(FAILURES), text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    told: dict[str, tuple[int, int]] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()
