"""What the runs of a row come to."""

from __future__ import annotations

import pytest

from nearkin.studies.results import results_of
from nearkin.studies.study import planned_runs


def test_scores_are_means_and_sample_standard_deviations(make_row, write_run, tmp_path):
    rows = [make_row("base"), make_row("ours", base="base"), make_row("single", base="base")]
    for seed, recall, last, step_ms in ((0, 0.60, 0.50, 10.0), (1, 0.66, 0.50, 12.0), (2, 0.63, 0.56, 14.0)):
        write_run(rows[0], seed, recall=recall, last=last, step_ms=step_ms)
        write_run(rows[1], seed, recall=recall + 0.1)
    write_run(rows[2], 1, recall=0.62)
    base, ours, single = results_of(planned_runs(rows, tmp_path, [0, 1, 2]))
    # 0.60, 0.66, 0.63: mean 0.63, squared deviations 0.0009 + 0.0009 + 0, divided by two: 0.0009, root 0.03.
    assert base.test("R@1").mean == pytest.approx(0.63)
    assert base.test("R@1").spread == pytest.approx(0.03)
    assert base.test("MAP@R").spread == pytest.approx(0.015)
    assert base.test("nDCG@8").mean == pytest.approx(0.1575)
    assert base.test("covering_radius").spread == pytest.approx(0.3)
    assert base.test("R@2") is None
    # Last epoch 0.50, 0.50, 0.56: mean 0.52, squared deviations 0.0004 + 0.0004 + 0.0016, halved 0.0012.
    assert base.last("R@1").mean == pytest.approx(0.52)
    assert base.last("R@1").spread == pytest.approx(0.0012**0.5)
    assert base.step_ms.mean == pytest.approx(12.0)
    assert base.step_ms.spread == pytest.approx(2.0)
    assert base.untrained("MAP@R").values == pytest.approx((0.05, 0.05, 0.05))
    assert base.chosen_epochs == [1.0, 1.0, 1.0]
    apart = ours.test("R@1").minus(base.test("R@1"))
    assert apart.value == pytest.approx(0.1)
    assert apart.spread == pytest.approx(0.03 * 2**0.5)
    assert apart.verdict == "above"
    assert single.seeds == [1]
    assert single.test("R@1").spread is None
    assert single.test("R@1").minus(base.test("R@1")).verdict is None
    assert [problem.seed for problem in single.problems] == [0, 2]
    assert base.said("protocol") == ["conventional"]
    assert base.said("training_conditions") == [], "what no run says is not said"


def test_only_the_conventional_protocol_has_a_last_epoch_beside_the_best(make_row, write_run, tmp_path):
    row = make_row("a", "protocol.name=validation")
    write_run(row, 0, recall=0.6)
    (result,) = results_of(planned_runs([row], tmp_path, [0]))
    assert result.test("R@1").mean == 0.6
    assert result.last("R@1") is None


def test_only_validation_classes_have_a_score_that_chose_the_epoch(make_row, write_run, tmp_path):
    rows = [
        make_row("a", "protocol.name=validation", "protocol.select_by=MAP@R"),
        make_row("b", "protocol.name=validation"),
        make_row("c"),
    ]
    for row in rows:
        write_run(row, 0, recall=0.6)
        write_run(row, 1, recall=0.5)
    chosen, named, on_test = results_of(planned_runs(rows, tmp_path, [0, 1]))
    assert chosen.select_by == "MAP@R"
    validation, test = chosen.validation
    assert validation.values == pytest.approx((0.4, 0.5))
    assert test.values == pytest.approx((0.3, 0.25))
    assert named.select_by == "R@1"
    assert on_test.validation is None


def test_runs_that_shared_the_machine_are_known(make_row, write_run, tmp_path):
    row = make_row("a")
    for seed, together in ((0, 4), (1, 1), (2, 4)):
        write_run(row, seed, recall=0.6)
        file = tmp_path / "a" / f"seed-{seed}" / "study.json"
        file.write_text(f'{{"row": "a", "seed": {seed}, "status": "finished", "side_by_side": {together}}}')
    (result,) = results_of(planned_runs([row], tmp_path, [0, 1, 2, 3]))
    assert result.side_by_side == [1, 4]
