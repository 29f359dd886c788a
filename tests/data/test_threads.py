"""Work in threads: results in the order of the items, few of them ahead, and errors where they are asked for."""

from __future__ import annotations

import threading

import pytest

from nearkin.data import threads
from nearkin.data.threads import threaded_map, usable_cores


def test_a_result_that_comes_late_still_comes_first():
    second_done = threading.Event()

    def work(item):
        if item == 0:
            assert second_done.wait(60)
        else:
            second_done.set()
        return item

    assert list(threaded_map(work, range(5), workers=2)) == list(range(5))


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_items_are_taken_than_few_results_ask_for(workers):
    taken = []
    results = threaded_map(lambda item: item, (taken.append(item) or item for item in range(100)), workers)
    for given in range(1, 11):
        next(results)
        assert len(taken) <= given + 4 * workers
    results.close()
    assert len(taken) < 100


def test_an_error_is_raised_in_the_place_of_its_result():
    results = threaded_map(lambda item: 1 // item, [1, 0, 1], workers=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("cores, expected", [(1, 1), (7, 7), (200, 16)])
def test_cores_that_this_process_may_use_count_up_to_sixteen(cores, expected, monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert usable_cores() == expected
