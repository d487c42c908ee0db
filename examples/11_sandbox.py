"""The sandbox as a program uses it: code, commands and files in one container, awaited, and many at once."""

import asyncio

from agent_tools import AsyncSandbox


async def main() -> None:
    async with AsyncSandbox({"memory": 2**30}) as sandbox:
        await sandbox.write_file("data/numbers.csv", "x\n1\n2\n39\n")
        execution = await sandbox.run_code("total = pd.read_csv('data/numbers.csv').x.sum()\nint(total)")
        print("code:", execution.value)

        result = await sandbox.run_command("sort -rn data/numbers.csv | head -1; exit 3")
        print("command:", result.exit_code, result.output.strip())

        server = await sandbox.start_command("while read line; do echo got $line; done", stdin=b"")
        await server.write_stdin(b"hello\n")
        print("background:", (await server.read(wait=10)).stdout.decode().strip())

        await sandbox.restart()  # variables are gone; files and commands stay
        print("still running:", server.poll() is None, [file.name for file in await sandbox.list_files()])

        results = await asyncio.gather(*(sandbox.run_command(["echo", str(n)]) for n in range(10)))
        print("at once:", b"".join(result.stdout for result in results).split())


asyncio.run(main())
