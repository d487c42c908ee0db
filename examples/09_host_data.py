"""A database stays on the host; the code asks it by a function and analyses the rows with pandas in the sandbox."""

import sqlite3

from agent_tools.code_mode import Policy, Toolset
from agent_tools.tools import CodeInterpreter

DATABASE = sqlite3.connect(":memory:", check_same_thread=False)
DATABASE.execute("create table orders (day text, region text, cents integer)")
DATABASE.executemany(
    "insert into orders values (?, ?, ?)",
    [
        (f"2024-03-{day:02d}", region, 1000 + 37 * day * weight)
        for day in range(1, 31)
        for weight, region in enumerate("NSW")
    ],
)


def query_orders(region: str, first_day: str = "2024-03-01") -> list[dict[str, object]]:
    """All orders of a region ('N', 'S' or 'W') from a day on, as rows of day and cents."""
    found = DATABASE.execute("select day, cents from orders where region = ? and day >= ?", (region, first_day))
    return [{"day": day, "cents": cents} for day, cents in found]


CODE = """
import asyncio
parts = await asyncio.gather(*[query_orders(region) for region in "NSW"])
frame = pd.concat([pd.DataFrame(rows).assign(region=region) for region, rows in zip("NSW", parts)])
frame["week"] = pd.to_datetime(frame.day).dt.isocalendar().week
(frame.pivot_table("cents", "week", "region", "sum") / 100).round(2)
"""

tools = Toolset()
tools.add(query_orders, policy=Policy(max_calls=10, timeout=5))
with CodeInterpreter(hostcalls=tools) as code_interpreter:
    execution = code_interpreter.run(CODE)
    print(code_interpreter.markdown(execution))
    for call in execution.host_calls:
        print(call.text)
