"""What the figures show, checked against plain computations and values written by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import matplotlib.colors
import numpy as np
import pytest
import torch

from nearkin.errors import NearkinError
from nearkin.report.figure_style import RIGHT, WRONG, show_row
from nearkin.report.figures import (
    certainty,
    covering,
    curves,
    draw_figure,
    map,
    neighbours,
    uncertainty,
)
from nearkin.report.figures.neighbours import draw_neighbours
from nearkin.report.opened_run import OpenedRun, ViewOptions, open_runs
from nearkin.report.query_results import retrieve
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


def written(path, rows=(), events=(), **training):
    """A run folder with a recipe, evaluations and events that were not trained but written down."""
    recipe = load_recipe({"training": training, "protocol": {"name": "validation"}})
    folder = RunFolder(path).begin(recipe)
    if rows:
        folder.write_evaluations(rows)
    folder.write_events(list(events))
    return path


def row(step, loss, score, **more):
    return {"epoch": step / 10, "step": step, "loss": loss, "lr": 1e-3, "MAP@R": score / 2, "R@1": score, **more}


def shown(module, runs):
    """The only figure that is drawn."""
    results = draw_figure(module.__name__.rpartition(".")[2], runs)
    (figure,) = [figure for _, figure in results if not isinstance(figure, NearkinError)]
    return figure


def reason(module, runs):
    """The only reason that is given for a figure that is not drawn."""
    results = draw_figure(module.__name__.rpartition(".")[2], runs)
    (error,) = [error for _, error in results if isinstance(error, NearkinError)]
    return str(error)


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    """A run on small coloured squares with VCPA, all classes but four trained."""
    from PIL import Image

    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number in range(11):
        (root / "data" / f"kind {number}").mkdir(parents=True)
        centre = rng.uniform(0, 255, (8, 8, 3))
        for index in range(5):
            pixels = (centre + rng.normal(0, 30, centre.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "data" / f"kind {number}" / f"{index}.png")
    recipe = load_recipe(
        {
            "data": {
                "source": str(root / "data"),
                "transform": "digits",
                "image_size": 8,
                "workers": 1,
                "cache": "memory",
            },
            "encoder": {"backbone": "small", "dim": 5},
            "objective": {"name": "vcpa", "tau": 1.0},
            "training": {"epochs": 9, "max_steps": 3, "batch_size": 12, "device": "cpu", "evaluate_every_steps": 1},
            "protocol": {"test_share": 0.35},
        }
    )
    run(recipe, RunFolder(root / "vcpa"), Observer())
    return root / "vcpa"


class TestCurves:
    def test_seeds_become_a_mean_with_a_band_and_each_best_gets_a_star(self, tmp_path):
        first = written(tmp_path / "a", [row(0, None, 0.1), row(10, 4.0, 0.5), row(20, 2.0, 0.3)], seed=0)
        second = written(tmp_path / "b", [row(0, None, 0.3), row(10, 6.0, 0.4), row(20, 4.0, 0.7)], seed=1)
        other = written(tmp_path / "c", [row(0, None, 0.2), row(10, 5.0, 0.2)], learning_rate=0.5)
        runs = open_runs([first, second, other])
        groups = curves.seed_groups(runs)
        assert [len(group.runs) for group in groups] == [2, 1]
        assert groups[0].title.endswith("mean ± std of 2 seeds")
        figure = shown(curves, runs)
        loss, score, *_ = figure.axes
        assert loss.lines[0].get_ydata().tolist() == [5.0, 3.0]
        assert np.allclose(score.lines[0].get_xydata(), [[0, 20], [1, 45], [2, 50]])
        low, high = score.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
        # The sample deviation of two values is their distance / √2: 20 and 40 points at the first and last evaluation.
        assert (low, high) == pytest.approx((20 - 20 / np.sqrt(2), 50 + 40 / np.sqrt(2)))
        stars = [line.get_xydata()[0].tolist() for line in score.lines if line.get_marker() == "*"]
        assert np.allclose(stars, [[1, 50], [2, 70], [1, 20]])

    def test_only_what_all_seeds_have_is_averaged(self, tmp_path):
        long = written(tmp_path / "a", [row(10, 1.0, 0.1), row(20, 2.0, 0.2)], seed=0)
        short = written(tmp_path / "b", [row(10, 3.0, 0.3)], seed=1)
        group = curves.seed_groups(open_runs([long, short]))[0]
        epochs, mean, spread = curves.curve(group.runs, "loss", "epoch")
        assert epochs.tolist() == [1.0]
        assert mean.tolist() == [2.0]
        assert spread.tolist() == pytest.approx([np.sqrt(2)])

    def test_the_untrained_network_is_never_the_best(self, tmp_path):
        opened = OpenedRun(written(tmp_path / "a", [row(0, None, 0.9), row(10, 1.0, 0.2), row(20, 1.0, 0.2)]))
        assert opened.best_evaluation["step"] == 10

    def test_a_run_that_was_not_evaluated_has_no_curves(self, tmp_path):
        assert "no evaluation yet" in reason(curves, [OpenedRun(written(tmp_path / "a"))])

    def test_scores_do_not_go_beyond_all_and_epochs_are_whole(self, tmp_path):
        opened = OpenedRun(written(tmp_path / "a", [row(0, None, 0.5), row(10, 1.0, 0.5)]))
        figure = shown(curves, [opened])
        figure.draw_without_rendering()
        recall = next(axis for axis in figure.axes if axis.get_ylabel() == "R@1 (%)")
        assert recall.get_ylim()[1] < 102
        low, high = recall.get_xlim()
        assert [tick for tick in recall.get_xticks() if low <= tick <= high] == [0, 1]

    def test_runs_of_a_study_are_called_by_their_row(self, tmp_path):
        for name, rate in (("vcpa", 0.1), ("slow", 0.2)):
            for seed in (0, 1):
                path = tmp_path / name / f"seed-{seed}"
                written(path, [row(10, 1.0, 0.5)], learning_rate=rate, seed=seed)
        paths = [tmp_path / "vcpa" / "seed-0", tmp_path / "slow" / "seed-0", tmp_path / "slow" / "seed-1"]
        runs = open_runs(paths)
        assert [run.name for run in runs] == ["vcpa-seed-0", "slow-seed-0", "slow-seed-1"]
        labels = [group.title for group in curves.seed_groups(runs)]
        assert labels == ["vcpa (proxy_anchor)", "slow (proxy_anchor), mean ± std of 2 seeds"]
        assert runs[1].label == "slow (proxy_anchor) (slow-seed-0)"

    def test_very_different_losses_get_a_logarithmic_axis(self, tmp_path):
        small = written(tmp_path / "a", [row(10, 0.1, 0.1), row(20, 0.05, 0.2)], learning_rate=0.1)
        large = written(tmp_path / "b", [row(10, 20.0, 0.3), row(20, 10.0, 0.2)])
        for paths, scale in (([small, large], "log"), ([large], "linear")):
            assert shown(curves, open_runs(paths)).axes[0].get_yscale() == scale


class TestSubProblems:
    EVENTS = tuple(
        {"step": step, "kind": "problem", "number": number, "steps_before": before}
        for step, number, before in ((0, 1, 0), (12, 2, 12), (17, 3, 5))
    )

    def test_covering_radius_with_the_boundaries(self, tmp_path):
        rows = [row(step, 1.0, 0.1, covering_radius=0.5 - step / 100, inter_class_distance=1.0) for step in (0, 10, 20)]
        opened = OpenedRun(written(tmp_path / "a", rows, self.EVENTS))
        score, radius, distance = shown(covering, [opened]).axes
        assert np.allclose(radius.lines[0].get_xydata(), [[0, 0.5], [10, 0.4], [20, 0.3]])
        for axis in (score, radius, distance):
            assert [line[0][0] for line in axis.collections[0].get_segments()] == [12, 17]

    def test_a_run_without_it_says_how_to_measure_it(self, tmp_path):
        plain = OpenedRun(written(tmp_path / "a", [row(10, 1.0, 0.1)]))
        assert "protocol.covering=true" in reason(covering, [plain])


class TestMap:
    def test_t_sne_keeps_clusters_apart_and_gives_the_same_map_again(self):
        rng = np.random.default_rng(0)
        centres = 10 * np.eye(3, 8)
        vectors = torch.from_numpy(np.repeat(centres, 12, 0) + rng.normal(0, 0.1, (36, 8)))
        points, how = map.project(vectors, seed=3)
        assert how == "by t-SNE"
        assert np.array_equal(points, map.project(vectors, seed=3)[0])
        groups = points.reshape(3, 12, 2)
        within = max(np.linalg.norm(group - group.mean(0), axis=1).max() for group in groups)
        apart = distances(groups.mean(1))[np.triu_indices(3, 1)].min()
        assert apart > 2 * within

    def test_images_and_proxies_of_the_same_classes_and_none_for_the_test_classes(self, glyphs):
        opened = OpenedRun(glyphs, ViewOptions(classes=4))
        found = map.map_of(opened, opened.training_sample, opened.proxies)
        assert found.points.shape == (20, 2)
        assert found.proxies.shape == (4, 1, 2)
        assert set(found.classes.tolist()) <= set(opened.training_classes.tolist())
        train, test = shown(map, [opened]).subfigs
        names = {text.get_text() for text in train.legends[0].get_texts()}
        assert names == {f"kind {opened.data.table.class_names[c][5:]}" for c in found.classes.tolist()} | {"proxy"}
        assert "proxy" not in {text.get_text() for text in test.legends[0].get_texts()}

    def test_it_says_why_proxies_lie_apart_from_their_classes(self, glyphs):
        images = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 2.0], [0, 0.6, 0.8]])
        labels = np.array([3, 3, 5, 5])
        far = torch.tensor([[[0, 1.0, 0]], [[0, -1.0, 0]]])
        # Within the classes 0.8 and 0.8; to the proxies 0, 0.6, 0 and −0.6.
        note = map.distance_note(images, labels, far)
        assert "0.80" in note
        assert "0.00" in note
        assert map.distance_note(images, labels, torch.tensor([[[0.9, 0.3, 0]], [[0, 0.3, 0.9]]])) == ""
        opened = OpenedRun(glyphs, ViewOptions(classes=4))
        train, test = shown(map, [opened]).subfigs
        written = train._supxlabel.get_text().replace("\n", " ")
        assert written == map.map_of(opened, opened.training_sample, opened.proxies).note
        assert test._supxlabel.get_text() == ""

    def test_two_dimensions_are_drawn_as_they_are(self):
        points, how = map.project(torch.tensor([[0.6, 0.8], [-1.0, 0.0], [0.0, 1.0]]), seed=0)
        assert how == "the embedding itself"
        assert np.allclose(points, [[0.6, 0.8], [-1.0, 0.0], [0.0, 1.0]])


class TestCertainty:
    def test_circles_have_radii_of_one_two_and_three_sigma(self, glyphs):
        opened = OpenedRun(glyphs, ViewOptions(classes=3))
        figure = shown(uncertainty, [opened])
        found = map.map_of(opened, opened.training_sample, opened.proxies)
        columns = [opened.training_classes.tolist().index(label) for label in found.classes.tolist()]
        bank = opened.bank
        noise = torch.randn(4000, *bank.vectors.shape, generator=torch.Generator().manual_seed(1))
        draws = torch.nn.functional.normalize(bank.vectors + bank.sigma * noise, dim=-1)
        sigma = draws.std(0).sum(-1)[columns, 0].numpy()
        circles = [patch for patch in figure.axes[0].patches if hasattr(patch, "radius")]
        radii = np.array([circle.radius for circle in circles]).reshape(3, 3)
        assert np.allclose(radii / radii[:, :1], [[1, 2, 3]] * 3)
        assert np.allclose(radii[:, 0] / radii[0, 0], sigma / sigma[0], rtol=0.15), "1000 and 4000 draws, long tails"
        assert np.ptp(sigma) > 0.5 * sigma.min(), "and the classes differ by more than that"
        assert np.allclose([c.center for c in circles[::3]], found.proxies[:, 0])

    def test_the_middle_class_has_half_of_its_images_within_two_sigma(self):
        points = np.array([[-2.0, 0], [2, 0], [0, 2], [0, -2], [9, 1], [9, -1], [9, 1], [9, -1]])
        found = SimpleNamespace(classes=np.array([3, 5]), labels=np.repeat([3, 5], 4), points=points)
        assert uncertainty.circle_scale(found, np.array([[0.5], [0.25]])) == pytest.approx(2.0)

    def test_most_and_least_certain_classes_in_order(self, glyphs):
        opened = OpenedRun(glyphs)
        values = torch.tensor([0.5, 0.1, 0.9, 0.4, 0.2, 0.7, 0.3])[:, None]
        opened.__dict__["uncertainty"] = values
        names = [opened.data.table.class_names[label] for label in opened.training_classes.tolist()]
        figure = shown(certainty, [opened])
        labels = [text.get_text().split("\n") for axis in figure.axes for text in axis.texts if "σ̄" in text.get_text()]
        assert [name for name, _ in labels] == [names[place] for place in (1, 4, 6, 2, 5, 0)]
        assert [value for _, value in labels] == [f"σ̄ = {value}" for value in (0.1, 0.2, 0.3, 0.9, 0.7, 0.5)]


class TestNeighbours:
    @staticmethod
    def frames(figure):
        return [matplotlib.colors.to_hex(frame.get_edgecolor()) for axis in figure.axes for frame in axis.patches]

    def test_right_and_wrong_are_framed_by_the_nearest_of_each_run(self, glyphs):
        runs = open_runs([glyphs])
        figure = shown(neighbours, runs)
        sample = runs[0].test_sample
        places = retrieve(runs[0], sample).choose_queries(neighbours.QUERIES)
        assert len(set(sample.labels[places].tolist())) == len(places) == 4, "one of each test class"
        apart = distances(sample.embeddings.double().numpy())
        np.fill_diagonal(apart, np.inf)
        count = 4  # of a class of five
        expected = [
            RIGHT if sample.labels[other] == sample.labels[place] else WRONG
            for place in places
            for other in np.argsort(apart[place], kind="stable")[:count].tolist()
        ]
        frames = [self.frames(SimpleNamespace(axes=[axis])) for axis in figure.axes[1::2]]
        assert [frame for row in frames for frame in row] == expected
        crosses = [text for axis in figure.axes for text in axis.texts if text.get_text() == "×"]
        assert len(crosses) == expected.count(WRONG)

    def test_runs_with_other_test_classes_are_not_mixed(self, glyphs, tmp_path):
        mapping = RunFolder(glyphs).recipe().as_mapping()
        mapping["protocol"]["split_seed"] = 5
        mapping["training"]["max_steps"] = 1
        run(load_recipe(mapping), RunFolder(tmp_path / "other"), Observer())
        assert "split_seed" in reason(neighbours, open_runs([glyphs, tmp_path / "other"]))

    def test_after_training_there_is_what_was_found_before_it_too(self, glyphs, monkeypatch):
        kept, genuine = [], neighbours.save_figure

        def save(figure, file, **options):
            kept.append(figure)
            genuine(figure, file, **options)

        monkeypatch.setattr(neighbours, "save_figure", save)
        file = draw_neighbours(RunFolder(glyphs))
        assert file == glyphs / "neighbours.png"
        assert file.read_bytes().startswith(b"\x89PNG")
        headings = [axis.get_title(loc) for axis in kept[0].axes for loc in ("center", "left") if axis.get_title(loc)]
        assert headings == ["query", "before training", "after training"]
        after = shown(neighbours, open_runs([glyphs]))
        assert len(self.frames(after)) == 4 + 16
        assert len(self.frames(kept[0])) == 4 + 2 * 16
        for axis, alone in zip(kept[0].axes[2::3], after.axes[1::2], strict=True):
            assert self.frames(SimpleNamespace(axes=[axis])) == self.frames(SimpleNamespace(axes=[alone]))

    def test_without_test_classes_there_is_no_picture(self, glyphs, tmp_path):
        mapping = RunFolder(glyphs).recipe().as_mapping()
        mapping["protocol"]["test_share"] = 0.0
        mapping["training"]["max_steps"] = 1
        assert run(load_recipe(mapping), RunFolder(tmp_path / "run"), Observer())["test"] is None
        assert draw_neighbours(RunFolder(tmp_path / "run")) is None
        assert not (tmp_path / "run" / "neighbours.png").exists()


def test_high_and_wide_images_fit_frames_of_one_size():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    show_row(axis, [(np.zeros(shape, np.uint8), RIGHT, "") for shape in ((40, 10, 3), (10, 40, 3))])
    assert [frame.get_bbox().size.tolist() for frame in axis.patches] == [[1, 1], [1, 1]]
    sizes = [np.ptp(np.reshape(image.get_extent(), (2, 2)), axis=1) for image in axis.images]
    assert np.allclose(sizes, [[0.24, 0.96], [0.96, 0.24]])


def distances(points):
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def test_broken_events_are_named(tmp_path):
    rows = [row(10, 1.0, 0.1, covering_radius=0.5, inter_class_distance=1.0)]
    opened = OpenedRun(written(tmp_path / "a", rows, [{"step": 0}]))
    assert json.loads(opened.folder.events_file.read_text()) == [{"step": 0}]
    opened.folder.events_file.write_text("[")
    assert "events.json cannot be read" in reason(covering, [opened])
