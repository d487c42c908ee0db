"""Who calls: the task that awaits, or the thread."""

from __future__ import annotations

import contextvars
import threading

from agent_tools.runtime.run_lock import caller, work_for


def test_a_thread_works_for_the_task_that_awaits_it_and_its_own_threads_do_not() -> None:
    found: list[object] = []

    def work() -> None:
        found.append(caller() is threading.current_thread())
        work_for("a task")
        found.append(caller())
        copied = threading.Thread(target=contextvars.copy_context().run, args=(lambda: found.append(caller()),))
        copied.start()
        copied.join()
        found.append(found.pop() is copied)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, "a task", True]
    assert caller() is threading.current_thread()
