"""A kernel as its clients see it; the sandbox is a plain process."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.served_kernel import KernelLife, ServedKernel
from agent_tools.jupyter.wire import MAX_MARKS
from agent_tools.limits import Limits
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine
from tests.unit.jupyter.talking import PATIENCE, Talk, talking
from tests.waiting import until

ECHO = """import comm

def opened(channel, message):
    @channel.on_msg
    def answer(message):
        channel.send({"echo": message["content"]["data"]}, buffers=message["buffers"])

comm.get_comm_manager().register_target("echo", opened)"""


def test_code_runs_and_keeps_its_variables(talk: Talk) -> None:
    ran = talk.run("x = 2\nprint('printed')\nx + 2")
    assert (ran.status, ran.text) == ("ok", "printed\n4")
    assert ran.kinds == ["status", "execute_input", "stream", "execute_result", "status"]
    assert talk.run("x").text == "2"


def test_every_message_belongs_to_its_request(talk: Talk) -> None:
    ran = talk.run("print(1)")
    assert {message["parent_header"]["msg_id"] for message in ran.published} == {ran.reply["parent_header"]["msg_id"]}
    assert {message["parent_header"]["session"] for message in ran.published} == {talk.client.session.session}


def test_input_asks_the_client(talk: Talk) -> None:
    assert talk.run("print('hello', input('name? '))", answer="Ada").text == "hello Ada\n"
    assert talk.run("import getpass\nlen(getpass.getpass())", answer="secret").text == "6"


def test_input_ends_with_the_end_of_file_that_a_client_sends(talk: Talk) -> None:
    assert talk.run("input()", answer="\x04").reply["content"]["ename"] == "EOFError"


def test_input_is_refused_where_the_client_does_not_answer(talk: Talk) -> None:
    assert talk.run("input()").reply["content"]["ename"] == "NotImplementedError"


def test_input_is_the_main_threads(talk: Talk) -> None:
    code = "import threading\ndef ask():\n    try: input()\n    except RuntimeError as e: print(e)\n"
    code += "thread = threading.Thread(target=ask); thread.start(); thread.join()"
    assert "main thread" in talk.run(code, answer="never asked").text


def test_a_request_for_input_can_be_interrupted(talk: Talk, kernel: ServedKernel) -> None:
    ran = talk.run("input()", allow_stdin=True, stdin_hook=lambda _: kernel.interrupt())
    assert ran.reply["content"]["ename"] == "KeyboardInterrupt"
    talk.client.input("too late")
    assert talk.run("print(input())", answer="in time").text == "in time\n"


def test_only_the_client_that_was_asked_can_answer(talk: Talk, info: ConnectionInfo) -> None:
    with talking(info.as_dict()) as other:
        started = talk.client.execute("line = input()", allow_stdin=True)
        talk.client.get_stdin_msg(timeout=PATIENCE)
        other.client.input("forged")
        assert other.ask("kernel_info_request", {}, "control")["status"] == "ok"
        talk.client.input("genuine")
        assert talk.reply_to(started)["status"] == "ok"
        assert talk.run("line").text == "'genuine'"


def test_an_interrupt_ends_code_and_keeps_variables(talk: Talk, kernel: ServedKernel) -> None:
    talk.run("x = 1")
    for code in (
        "import time; print('go', flush=True); time.sleep(60)",
        "import re; print('go'); re.match('(a+)+$', 'a' * 50 + 'b')",
    ):
        timer = threading.Timer(0.5, kernel.interrupt)
        timer.start()
        assert talk.run(code).reply["content"]["ename"] == "KeyboardInterrupt"
        timer.join()
    assert talk.run("x").text == "1"


def test_an_interrupt_between_requests_does_nothing(talk: Talk, kernel: ServedKernel) -> None:
    kernel.interrupt()
    assert talk.run("1").status == "ok"


def test_an_interrupt_by_message_is_answered_while_code_runs(talk: Talk) -> None:
    started = talk.client.execute("import time; time.sleep(60)")
    until(lambda: talk.client.get_iopub_msg(timeout=PATIENCE)["msg_type"] == "execute_input")
    assert talk.ask("interrupt_request", {}, "control")["status"] == "ok"
    assert talk.reply_to(started)["ename"] == "KeyboardInterrupt"


def test_kernel_info_is_told_while_code_runs(talk: Talk) -> None:
    started = talk.client.execute("input()", allow_stdin=True)
    talk.client.get_stdin_msg(timeout=PATIENCE)
    assert talk.ask("kernel_info_request", {}, "control")["language_info"]["name"] == "python"
    talk.client.input("done")
    assert talk.reply_to(started)["status"] == "ok"


def test_silent_code_that_fails_aborts_nothing(talk: Talk) -> None:
    talk.client.execute("import time; time.sleep(0.3); 1 / 0", silent=True)
    behind = talk.client.execute("1")
    assert talk.reply_to(behind)["status"] == "ok"


def test_a_request_that_is_too_costly_to_read_is_answered(talk: Talk) -> None:
    costly = talk.client.execute("[" + "1," * MAX_MARKS + "]")
    assert "commas and brackets" in talk.reply_to(costly)["evalue"]
    assert talk.run("1").status == "ok"


def test_a_traceback_has_colours_and_the_frames_of_libraries(talk: Talk) -> None:
    lines = "\n".join(talk.run("import json; json.loads('{')").reply["content"]["traceback"])
    assert "\x1b[" in lines
    assert "decoder.py" in lines


def test_what_waits_behind_code_that_fails_is_aborted(talk: Talk) -> None:
    first = talk.client.execute("input()\n1/0", allow_stdin=True)
    talk.client.get_stdin_msg(timeout=PATIENCE)
    behind = [talk.client.execute("x = 1") for _ in range(2)]
    completion = talk.client.complete("zi")
    talk.client.input("go")
    assert talk.reply_to(first)["ename"] == "ZeroDivisionError"
    assert [talk.reply_to(each)["status"] for each in behind] == ["aborted", "aborted"]
    assert talk.reply_to(completion)["matches"] == ["zip"]
    assert talk.run("x").status == "error"


def test_what_waits_is_run_where_the_request_says_so(talk: Talk) -> None:
    first = talk.client.execute("input()\n1/0", allow_stdin=True, stop_on_error=False)
    talk.client.get_stdin_msg(timeout=PATIENCE)
    second = talk.client.execute("x = 1")
    talk.client.input("go")
    assert [talk.reply_to(each)["status"] for each in (first, second)] == ["error", "ok"]


def test_completion_inspection_history_and_completeness_are_answered(talk: Talk) -> None:
    talk.run("first = 1")
    assert "first" in talk.ask("complete_request", {"code": "firs", "cursor_pos": 4})["matches"]
    found = talk.ask("inspect_request", {"code": "zip", "cursor_pos": 3, "detail_level": 0})
    assert "zip" in found["data"]["text/plain"]
    history = talk.ask("history_request", {"hist_access_type": "tail", "output": False, "raw": True, "n": 1})
    assert history["history"] == [[0, 1, "first = 1"]]
    assert talk.ask("is_complete_request", {"code": "for x in y:"})["status"] == "incomplete"


def test_magics_find_what_was_run(talk: Talk) -> None:
    talk.run("first = 1")
    talk.run("second = 2")
    assert talk.run("%history -g fir").text.split() == ["1:", "first", "=", "1", "3:", "%history", "-g", "fir"]
    assert talk.run("%history -l 2").text == "second = 2\n%history -g fir\n"


@pytest.mark.parametrize("n", ["many", -1, 1e300])
def test_a_history_that_cannot_be_told_is_answered(talk: Talk, n: object) -> None:
    asked = {"hist_access_type": "tail", "output": False, "raw": True, "n": n}
    assert talk.ask("history_request", asked)["status"] in ("ok", "error")
    assert talk.run("1").status == "ok"


def test_an_answer_that_comes_too_late_is_not_the_next_ones(talk: Talk) -> None:
    code = "import time\ntry: input('first')\nexcept KeyboardInterrupt: print('ended'); time.sleep(1)\nline = input()"
    request = talk.client.execute(code, allow_stdin=True)
    talk.client.get_stdin_msg(timeout=PATIENCE)
    assert talk.ask("interrupt_request", {}, "control")["status"] == "ok"
    while talk.client.get_iopub_msg(timeout=PATIENCE)["msg_type"] != "stream":
        pass
    talk.client.input("late")
    talk.client.get_stdin_msg(timeout=PATIENCE)
    talk.client.input("in time")
    assert talk.reply_to(request)["status"] == "ok"
    assert talk.run("line").text == "'in time'"


def test_the_pager_the_next_cell_and_leaving_are_payloads(talk: Talk) -> None:
    payloads = [talk.run(code).reply["content"]["payload"] for code in ("zip?", "exit")]
    assert [[each["source"] for each in payload] for payload in payloads] == [["page"], ["ask_exit"]]
    payload = talk.run("get_ipython().set_next_input('x = 1')").reply["content"]["payload"]
    assert (payload[0]["source"], payload[0]["text"]) == ("set_next_input", "x = 1")
    assert talk.run("1").status == "ok"


def test_libraries_recognise_a_notebook(talk: Talk) -> None:
    assert talk.run("type(get_ipython()).__name__").text == "'ZMQInteractiveShell'"


def test_a_debugger_can_be_typed_at(talk: Talk) -> None:
    talk.run("def f(x): return 1 / x")
    assert talk.run("f(0)").status == "error"
    assert "ipdb" not in talk.run("%debug", answer="q").text


def test_several_clients_see_the_same_kernel(talk: Talk, info: ConnectionInfo) -> None:
    talk.run("x = 1")
    with talking(info.as_dict()) as other:
        assert other.run("x + 1").text == "2"
        assert talk.run("x").text == "1"


def test_comms_go_both_ways_with_their_buffers(talk: Talk) -> None:
    talk.run(ECHO)
    session, shell = talk.client.session, talk.client.shell_channel
    shell.send(session.msg("comm_open", {"comm_id": "c1", "target_name": "echo", "data": {}}))
    message = session.msg("comm_msg", {"comm_id": "c1", "data": {"n": 1}})
    message["buffers"] = [b"\0\1\2"]
    session.send(shell.socket, message, buffers=[b"\0\1\2"])
    while (found := talk.client.get_iopub_msg(timeout=PATIENCE))["msg_type"] != "comm_msg":
        pass
    assert found["content"]["data"] == {"echo": {"n": 1}}
    assert [bytes(each) for each in found["buffers"]] == [b"\0\1\2"]


def test_a_restart_has_a_fresh_kernel_in_the_same_sandbox(
    talk: Talk, kernel: ServedKernel, info: ConnectionInfo
) -> None:
    talk.run("x = 1; open('/tmp/jupyter-restart', 'w').close()")
    before = talk.run("import os; os.getppid()").text
    kernel.kill()
    assert kernel.exit_code == 0
    kernel.start(info)
    talk.client.wait_for_ready(timeout=PATIENCE)
    assert talk.run("x").reply["content"]["ename"] == "NameError"
    assert talk.run("import os; os.getppid()").text == before


@pytest.mark.parametrize(
    ("status", "code"), [("error", "%%capture c\nprint(2)\n1 / 0"), ("ok", "get_ipython().run_cell('1 / 0')")]
)
def test_an_error_within_a_cell_is_shown(talk: Talk, status: str, code: str) -> None:
    ran = talk.run(code)
    (shown,) = (message["content"]["ename"] for message in ran.published if message["msg_type"] == "error")
    assert (ran.status, shown) == (status, "ZeroDivisionError")
    if status == "error":
        assert talk.run("print(c.stdout)").text == "2\n\n"


@pytest.mark.parametrize("line", ["%run bad.py", "%run -p bad.py", "%run -m bad", "%run bad.ipy"])
def test_a_file_that_fails_ends_the_cell_that_runs_it(talk: Talk, line: str) -> None:
    talk.run("for name in ('bad.py', 'bad.ipy'): open(name, 'w').write('raise ValueError(1)')")
    ran = talk.run(f"{line}\nprint('went on'.upper())")
    assert ran.reply["content"]["ename"] == "ValueError"
    assert ran.kinds.count("error") == 1
    assert "WENT ON" not in ran.text


@pytest.mark.parametrize("command", ["!sleep {}", "x = !sleep {}", "subprocess.run(['sleep', '{}'])", "%run slow.py"])
def test_an_interrupt_ends_the_cell_and_what_it_waits_for(talk: Talk, command: str) -> None:
    talk.run("import subprocess; open('slow.py', 'w').write('import time; time.sleep(61)')")
    seconds = f"61.{os.getpid():07}"  # of this test alone, on a machine where others run
    request = talk.client.execute(f"print('begun', flush=True)\n{command.format(seconds)}\nprint('went on'.upper())")
    while (message := talk.client.get_iopub_msg(timeout=PATIENCE))["msg_type"] != "stream":
        pass
    assert message["content"]["text"] == "begun\n"
    assert talk.ask("interrupt_request", {}, "control")["status"] == "ok"
    assert talk.reply_to(request)["ename"] == "KeyboardInterrupt"
    found = talk.run(f"subprocess.run(['pgrep', '-fc', '^sleep {seconds}$'], capture_output=True, text=True).stdout")
    assert "WENT ON" not in found.text
    assert "'0" in found.text


def test_a_crash_costs_the_cell_and_says_why(talk: Talk, kernel: ServedKernel) -> None:
    talk.run("x = 1")
    ran = talk.run("import os; os.kill(os.getpid(), 11)")
    assert ran.reply["content"]["ename"] == "KernelDied"
    assert "signal 11" in ran.reply["content"]["evalue"]
    assert "as they were before this code" in ran.reply["content"]["evalue"]
    assert ran.kinds[-2:] == ["error", "status"]
    assert kernel.exit_code is None
    assert talk.run("x").text == "1"


def test_without_checkpoints_a_crash_ends_the_kernel(process_runtime: Runtime, info: ConnectionInfo) -> None:
    served = ServedKernel({"checkpoint": False}, process_runtime)
    served.start(info)
    with talking(info.as_dict()) as talk:
        ran = talk.run("x = 1; import os; os.kill(os.getpid(), 11)")
        assert "Variables are lost" in ran.reply["content"]["evalue"]
        until(lambda: served.exit_code == 1)
        served.start(info)
        talk.client.wait_for_ready(timeout=PATIENCE)
        assert talk.run("x").status == "error"
    served.close()


def test_a_shutdown_is_answered_and_ends_the_kernel(talk: Talk, kernel: ServedKernel) -> None:
    assert talk.ask("shutdown_request", {"restart": False}, "control") == {"status": "ok", "restart": False}
    until(lambda: kernel.exit_code == 0)


def test_unknown_control_requests_are_refused(talk: Talk) -> None:
    assert talk.ask("debug_request", {}, "control")["ename"] == "NotImplementedError"


def test_a_message_without_the_right_signature_is_dropped(talk: Talk, info: ConnectionInfo) -> None:
    talk.client.session.key = b"another"
    talk.client.execute("x = 1")
    talk.client.session.key = info.key
    assert talk.run("x").status == "error"


def test_a_request_that_is_too_large_is_refused(talk: Talk) -> None:
    ran = talk.run("#" * int(Limits().max_message_bytes))
    assert "bytes" in ran.reply["content"]["evalue"]
    assert talk.run("1").status == "ok"


def test_a_message_of_the_kernel_that_is_too_large_is_a_note(talk: Talk) -> None:
    ran = talk.run("from IPython.display import display, HTML\ndisplay(HTML('x' * 20_000_000))")
    assert "too much for one message" in ran.text
    assert talk.run("1").status == "ok"


def test_code_that_breaks_the_protocol_costs_the_cell(talk: Talk) -> None:
    code = "import gc, os, socket\n"
    code += "for each in gc.get_objects():\n    if type(each) is socket.socket and each.fileno() > 2:\n"
    code += "        os.write(each.fileno(), b'GET / HTTP/1.1')"
    assert "it sent" in talk.run(code).reply["content"]["evalue"]
    assert talk.run("1").status == "ok"


def test_a_full_work_dir_refuses_code(process_runtime: Runtime, info: ConnectionInfo) -> None:
    served = ServedKernel({"limits": {"max_work_dir_bytes": 1_000_000}}, process_runtime)
    served.start(info)
    with talking(info.as_dict()) as talk:
        talk.run("open('large', 'wb').write(bytes(3_000_000)); import time; time.sleep(5)")
        assert "max_work_dir_bytes" in talk.run("1").reply["content"]["evalue"]
    served.close()


def test_all_of_it_works_over_stdio(process_runtime: Runtime, info: ConnectionInfo) -> None:
    served = ServedKernel({"transport": "stdio"}, process_runtime)
    served.start(info)
    with talking(info.as_dict()) as talk, talking(info.as_dict()) as other:
        assert talk.run("x = input(); x", answer="typed").text == "'typed'"
        assert other.run("x").text == "'typed'"
        served.start(info)
        talk.client.wait_for_ready(timeout=PATIENCE)
        assert talk.run("x").status == "error"
    served.close()


def test_files_of_an_engine_elsewhere_are_there_when_the_cell_is_over(info: ConnectionInfo, work_dir: Path) -> None:
    runtime = Runtime(ProcessEngine(shares_files=False), lambda packages: "none")
    served = ServedKernel({"work_dir": str(work_dir)}, runtime)
    served.start(info)
    (work_dir / "given").write_text("brought in")
    with talking(info.as_dict()) as talk:
        assert (
            talk.run("text = open('given').read(); open('made', 'w').write(text.upper()); text").text == "'brought in'"
        )
        assert (work_dir / "made").read_text() == "BROUGHT IN"
    served.close()
    runtime.close_all()


def test_a_port_that_is_taken_is_an_error(process_runtime: Runtime, kernel: ServedKernel, info: ConnectionInfo) -> None:
    other = ServedKernel({}, process_runtime)
    bad = ConnectionInfo("tcp", "192.0.2.1", info.ports, info.key)
    with pytest.raises(OSError, match="socket"):
        other.start(bad)
    other.close()


def test_options_are_checked_before_anything_starts() -> None:
    with pytest.raises(InvalidParams, match="memry"):
        ServedKernel({"memry": 1})


def test_output_after_its_cell_still_belongs_to_it(talk: Talk) -> None:
    code = (
        "import threading, time\ndef later(): time.sleep(0.5); print('later')\nthreading.Thread(target=later).start()"
    )
    ran = talk.run(code)
    while (found := talk.client.get_iopub_msg(timeout=PATIENCE))["msg_type"] != "stream":
        pass
    assert found["parent_header"]["msg_id"] == ran.reply["parent_header"]["msg_id"]


def test_cells_are_audited_and_none_runs_without_the_log(
    process_runtime: Runtime, info: ConnectionInfo, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    served = ServedKernel({"audit": str(path)}, process_runtime)
    served.start(info)
    with talking(info.as_dict()) as talk:
        talk.run("x = 1")
        talk.run("1/0")
        talk.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        path.mkdir()
        assert talk.run("x = 2").reply["content"]["ename"] == "AuditUnavailable"
        path.rmdir()
        assert talk.run("x").text == "1"
    served.close()
    assert [line["event"] for line in lines] == ["begun", "ended"] * 3
    assert [(line["outcome"], line.get("error")) for line in lines[1::2]] == [
        ("ok", None),
        ("error", "ZeroDivisionError"),
        ("died", None),
    ]


def test_a_cell_that_ends_with_its_kernel_is_audited(
    process_runtime: Runtime, info: ConnectionInfo, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    served = ServedKernel({"audit": str(path)}, process_runtime)
    served.start(info)
    with talking(info.as_dict()) as talk:
        talk.client.execute("import time; time.sleep(60)")
        until(path.exists)
        served.kill()
    served.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line.get("outcome")) for line in lines] == [("begun", None), ("ended", "cancelled")]


def test_no_request_is_taken_beyond_the_queue() -> None:
    taken: list[str] = []
    requests = [("control", [b"c"]), *[("shell", [b"s"])] * 9]
    sockets: Any = SimpleNamespace(receive=lambda **_: iter(requests))
    wire: Any = SimpleNamespace(read=lambda channel, _: channel)

    class Filling:
        handle = taken.append

        @property
        def takes_requests(self) -> bool:
            return len(taken) < 4

    life = KernelLife.__new__(KernelLife)
    life._take(sockets, wire, cast("Any", Filling()), with_shell=True)
    assert taken == ["control", "shell", "shell", "shell"]
