from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from nearkin.training import observers as progress
from nearkin.training.state import RunTime


def state(step=3, best=None, selects_on="validation", below=False):
    return SimpleNamespace(
        step=step,
        total_steps=10,
        best=best,
        protocol=SimpleNamespace(selects_on=selects_on),
        time=RunTime(),
        evaluation_interval=5,
        history=[],
        is_below_baseline=lambda row: below,
    )


ROW = {"epoch": 1.0, "step": 3, "loss": 2.5, "R@1": 0.4321, "MAP@R": 0.1}


def test_an_evaluation_is_one_line():
    text = io.StringIO()
    with progress.ConsoleObserver(Console(file=text, width=200)) as observer:
        observer.on_step(state(), 2.5, 8)
        observer.on_evaluation(state(best=ROW), ROW)
    line = " ".join(text.getvalue().split())
    assert line == "epoch 1 loss 2.500 R@1 43.2 MAP@R 10.0 (validation) best so far"


def lines_of(show):
    """What an observer prints where nobody watches a terminal."""
    text = io.StringIO()
    with progress.ConsoleObserver(Console(file=text, width=200)) as observer:
        show(observer)
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def test_an_epoch_below_the_untrained_backbone_is_not_called_the_best():
    (line,) = lines_of(lambda observer: observer.on_evaluation(state(best=ROW, below=True), ROW))
    assert line.endswith("(validation) best of training so far, below the untrained backbone")


def test_the_evaluation_before_the_first_step_is_called_what_it_is():
    row = {"epoch": 0.0, "step": 0, "loss": None, "R@1": 0.5}
    (line,) = lines_of(lambda observer: observer.on_evaluation(state(), row))
    assert line == "epoch 0 R@1 50.0 (validation) untrained backbone"


def test_scoring_shows_in_a_terminal_and_is_a_line_elsewhere():
    def score(observer):
        for done in (0, 256, 300):
            observer.on_scoring("scoring the untrained backbone", done, 300)
        observer.on_scoring("evaluating", 0, 300)

    assert lines_of(score) == ["scoring the untrained backbone: 300 images"]
    text = io.StringIO()
    with progress.ConsoleObserver(Console(file=text, force_terminal=True, width=120)) as observer:
        observer.on_scoring("scoring the untrained backbone", 256, 300)
        observer._bar.refresh()
        assert "scoring the untrained backbone" in text.getvalue()
        assert "256/300 images" in text.getvalue()


def test_a_terminal_gets_a_bar_with_loss_and_speed():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with progress.ConsoleObserver(console) as observer:
        observer.decoding(1, 2)
        observer.decoding(2, 2)
        observer.on_step(state(2), 2.5, 8)
        observer.on_step(state(3), 2.5, 8)
        observer._bar.refresh()
        shown = text.getvalue()
    assert "loss 2.500" in shown
    assert "images/s" in shown


def test_the_time_of_a_run_is_said_once_from_its_first_steps():
    def train(observer):
        for step in range(1, 9):
            now = state(step)
            now.total_steps, now.time.by["steps"] = 101, 5.0 + step
            now.history, now.time.by["evaluations"] = [{}, {}], 8.0
            observer.on_step(now, 2.5, 8)

    # The steps left take a second each, and 20 evaluations four.
    (line,) = lines_of(train)
    assert line == "about 0:02:55 in all, by the first steps"
    assert progress.seconds_left(state(6), 1.0) == 4
