"""The runs that a checkpoint knows of."""

from agent_tools.runtime.kernel.run_numbers import MAX_WAKINGS, RunNumbers


def test_a_checkpoint_does_not_know_of_later_cells() -> None:
    runs = RunNumbers()
    assert [runs.begin(is_cell=is_cell) for is_cell in (False, True, True, False, True)] == [1, 2, 3, 4, 5]
    assert runs.has_definitions(4)
    assert not runs.has_definitions(3)
    assert runs.return_to(3) == 1
    assert runs.return_to(1) == 2
    assert runs.return_to(1) == 0


def test_the_run_before_the_last_cell_is_the_one_its_variables_came_from() -> None:
    runs = RunNumbers()
    assert runs.before_last_cell() is None
    runs.begin(is_cell=True)
    assert runs.before_last_cell() == 0
    runs.begin(is_cell=True)
    runs.begin(is_cell=True)
    assert runs.before_last_cell() == 2
    runs.return_to(1)
    assert runs.begin(is_cell=True) == 4
    assert runs.before_last_cell() == 1
    runs.start_anew()
    assert runs.before_last_cell() is None
    assert runs.begin(is_cell=True) == 5
    assert runs.before_last_cell() == 0


def test_a_checkpoint_wears_out_and_another_one_is_new() -> None:
    runs = RunNumbers()
    assert [runs.wears_out(3) for _ in range(MAX_WAKINGS + 1)] == [False] * MAX_WAKINGS + [True]
    assert not runs.wears_out(4)
    assert not runs.wears_out(3)


def test_a_checkpoint_that_is_chosen_again_and_again_does_not_wear_out() -> None:
    runs = RunNumbers()
    for _ in range(MAX_WAKINGS + 1):
        runs.is_chosen()
        assert not runs.wears_out(3)
