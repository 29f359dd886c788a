"""Which runs go into a soup together: every reason against it, and what is said of runs that began otherwise."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from nearkin.errors import DataError, RecipeError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import Soup, SoupPart
from nearkin.runs.soup_parts import MOST_IMAGES, Part, different_starts, open_parts


@pytest.fixture
def written(tmp_path, squares):
    """``written(name, *overrides)``: a run that was not trained but written down, with a split that may be another."""
    _, train = squares
    template = RunFolder(train("anchor-0"))

    def write(name, *overrides, change=lambda split: split):
        recipe = Recipe.from_mapping(template.recipe().as_mapping(), overrides)
        folder = RunFolder(tmp_path / name).begin(recipe)
        folder.write_split(change(template.stored_split))
        folder.write_scores(template.scores())
        return folder.path

    return write


def of(split, kinds):
    """Which images are of these classes: ``kind 0`` to ``kind 6`` train, ``kind 7`` and three others are tested."""
    names = {f"kind {kind}" for kind in kinds}
    return np.array([split.class_names[label] in names for label in split.labels])


def trained_on(*kinds):
    """The split with other training classes; what neither trains nor is tested lies idle."""

    def change(split):
        splits = np.where(of(split, kinds), "train", np.where(split.splits == "test", "test", "unused"))
        return dataclasses.replace(split, splits=splits)

    return change


def everything(split):
    return dataclasses.replace(split, splits=np.full(len(split.ids), "train"))


def first_of_each(part, rest):
    """The first image of every class in one part of the split, the others in another."""

    def change(split):
        first = np.unique(split.labels, return_index=True)[1]
        splits = np.full(len(split.ids), rest, dtype="U10")
        splits[first] = part
        return dataclasses.replace(split, splits=splits)

    return change


def test_runs_that_go_together_come_back_in_their_order(written):
    paths = [written("a"), written("b", "objective.name=vcpa"), written("c", "training.epochs=3", "data.image_size=16")]
    parts = open_parts(paths)
    assert [part.path for part in parts] == [str(path) for path in paths]
    assert (int(parts[0].trained.sum()), int(parts[0].tested.sum())) == (35, 20)
    assert different_starts(parts) == []


@pytest.mark.parametrize("count", [0, 1])
def test_it_takes_two(written, count):
    with pytest.raises(RecipeError, match=r"two runs or more, got .*: nearkin soup RUN RUN"):
        open_parts([written("a")][:count])


def test_a_run_counts_once(written, monkeypatch):
    path = written("a")
    with pytest.raises(RecipeError, match="the same run twice"):
        open_parts([path, written("b"), path])
    monkeypatch.chdir(path.parent)
    with pytest.raises(RecipeError, match=r"a and b/../a: the same run twice"):
        open_parts(["a", "b/../a"])


def test_what_is_no_finished_run_is_named(written, tmp_path):
    path = written("a")
    with pytest.raises(DataError, match=r"no run at '.*/typo'; runs beside it: .*/a"):
        open_parts([path, tmp_path / "typo"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"'.*/empty' is not a run folder"):
        open_parts([tmp_path / "empty", path])
    begun = written("begun")
    RunFolder(begun).scores_file.unlink()
    with pytest.raises(DataError, match="begun has no scores yet: the run is not finished"):
        open_parts([path, begun])
    early = written("early")
    RunFolder(early).split_file.unlink()
    with pytest.raises(DataError, match="early was written by an earlier version"):
        open_parts([path, early])


def test_a_soup_is_not_a_part(written):
    soup = written("soup")
    parts = [SoupPart(name, "vcpa", "plain", 0, "x") for name in ("runs/x", "runs/y")]
    RunFolder(soup).write_soup(Soup("best", parts))
    with pytest.raises(RecipeError, match=r"soup is a soup already: give the runs .* \(runs/x, runs/y\)"):
        open_parts([written("a"), soup])


@pytest.mark.parametrize(
    "change, said",
    [
        ("encoder.dim=6", "encoder.dim is 5 in the one and 6 in the other"),
        ("encoder.dim=null", "encoder.dim is 5 in the one and None in the other"),
        ("encoder.backbone=resnet18", "encoder.backbone is small in the one and resnet18 in the other"),
        ("encoder.pooling=max", "encoder.pooling is avg in the one and max in the other"),
        ("encoder.normalisation=ball", "encoder.normalisation is l2 in the one and ball in the other"),
        ("encoder.head_bias=false", "encoder.head_bias is True in the one and False in the other"),
        ("encoder.last_stride=1", "encoder.last_stride is None in the one and 1 in the other"),
        ("encoder.options.width=4", "encoder.options.width is None in the one and 4 in the other"),
    ],
)
def test_another_architecture_is_named_by_its_key(written, change, said):
    with pytest.raises(RecipeError, match=said) as caught:
        open_parts([written("a"), written("same"), written("other", change)])
    assert "a and " in str(caught.value)
    assert str(caught.value).count("in the other") == 1, "and nothing else"
    assert "--with" in str(caught.value)


@pytest.mark.parametrize("change", ["channels_last=true", "freeze_batch_norm=true", "freeze_scale_and_shift=true"])
def test_what_does_not_shape_the_network_may_differ(written, change):
    assert len(open_parts([written("a"), written("b", f"encoder.{change}")])) == 2


def test_other_images_are_refused(written):
    def another(split):
        return dataclasses.replace(split, digests=("other", *split.digests[1:]))

    with pytest.raises(DataError, match=r"not trained on the same data: .*/a on 55 images of .*squares.csv and"):
        open_parts([written("a"), written("b", change=another)])


def test_benchmarks_are_the_same_images_though_drawn_anew(written):
    def drawn_anew(split):
        return dataclasses.replace(split, digests=tuple(f"{digest}-anew" for digest in split.digests))

    def fewer(split):
        return dataclasses.replace(split, ids=("another", *split.ids[1:]))

    glyphs, mnist = "data.source=glyphs", "data.source=mnist"
    first = written("a", glyphs)
    assert len(open_parts([first, written("b", glyphs, change=drawn_anew)])) == 2
    for other in (written("c", glyphs, change=fewer), written("d", mnist, change=drawn_anew)):
        with pytest.raises(DataError, match="not trained on the same data"):
            open_parts([first, other])


def test_a_test_class_that_another_trained_on_is_a_leak_whichever_comes_first(written):
    plain, leaky = written("plain"), written("leaky", change=trained_on(0, 1, 2, 7))
    said = r"leaky was trained on 1 of the 4 classes that .*plain is tested on \(kind 7\)"
    for paths in ([plain, leaky], [leaky, plain]):
        with pytest.raises(DataError, match=said):
            open_parts(paths)
    with pytest.raises(DataError, match=r"final was trained on 4 of the 4 classes .* …\)"):
        open_parts([plain, written("final", change=everything)])


def test_a_class_leaks_by_other_images_of_it_too(written):
    """The image that trained is not the one that is tested elsewhere."""

    def one_more(part):
        def change(split):
            splits = np.where(split.splits == "test", "unused", split.splits)
            splits[np.flatnonzero(of(split, [7]))[int(part == "train")]] = part
            return dataclasses.replace(split, splits=splits)

        return change

    with pytest.raises(DataError, match="b was trained on 1 of the 1 classes"):
        open_parts([written("a", change=one_more("test")), written("b", change=one_more("train"))])


def test_where_classes_are_tested_that_train_the_images_count(written):
    one, two, same = (
        written(name, change=first_of_each(*parts))
        for name, parts in (("a", ("test", "train")), ("b", ("train", "test")), ("c", ("test", "train")))
    )
    assert len(open_parts([one, same])) == 2
    with pytest.raises(DataError, match=r"b was trained on 11 of the 11 images that .*a is tested on"):
        open_parts([one, two])


def test_other_training_classes_are_no_leak_nor_fewer_test_classes(written):
    def fewer_tests(split):
        return dataclasses.replace(split, splits=np.where(of(split, [7]), "unused", split.splits))

    paths = [written("a"), written("b", change=trained_on(0, 1, 2)), written("c", change=fewer_tests)]
    assert len(open_parts(paths)) == 3


def test_final_models_go_together(written):
    paths = [written(name, change=everything) for name in "ab"]
    assert not any(part.tested.any() for part in open_parts(paths))


def begins(written, first, second):
    """What is said of the second run."""
    return different_starts(open_parts([written("a", *first), written("b", *second)]))


def test_random_networks_of_another_seed_have_nothing_in_common(written):
    (said,) = begins(written, [], ["training.seed=3"])
    assert "b began from other random numbers than" in said
    assert "(training.seed 3 and 0)" in said
    assert "usually worthless" in said


def test_other_weights_are_said(written, tmp_path):
    one, two, moved = (tmp_path / name for name in ("one.safetensors", "two.safetensors", "moved.safetensors"))
    for file, content in ((one, b"1"), (two, b"2"), (moved, b"1")):
        file.write_bytes(content)
    (said,) = begins(written, [f"encoder.weights={one}"], [f"encoder.weights={two}"])
    assert f"b began from {two}, " in said
    assert f"from {one}: such weights do not lie in one basin" in said
    (said,) = begins(written, [], [f"encoder.weights={two}"])
    assert "from random numbers: such weights" in said
    paths = [written("c", f"encoder.weights={one}"), written("d", f"encoder.weights={moved}")]
    for path in paths:
        folder = RunFolder(path)
        folder.environment_file.write_text(json.dumps({"weights_hash": "the same"}))
    assert different_starts(open_parts(paths)) == [], "known by their content"


def test_pretrained_networks_of_another_seed_have_other_heads(written):
    weights = "encoder.weights=imagenet"
    (said,) = begins(written, [weights], [weights, "training.seed=1"])
    assert "the head of " in said
    assert "(training.seed 1 and 0): a mean of the weights is only as good as the heads are alike" in said
    assert begins(written, [weights], [weights, "objective.name=vcpa"]) == []
    assert begins(written, [weights, "encoder.dim=null"], [weights, "encoder.dim=null", "training.seed=1"]) == []
    (said,) = begins(written, [weights], [weights, "encoder.head_init=glorot"])
    assert "(encoder.head_init glorot and default)" in said


def test_networks_of_other_packages_bring_their_weights(written):
    own = "encoder.backbone=timm:vit_tiny"
    assert "the head of" in begins(written, [own], [own, "training.seed=1"])[0]
    bare = [own, "encoder.options.pretrained=false"]
    assert "other random numbers" in begins(written, bare, [*bare, "training.seed=1"])[0]


def test_heads_by_principal_axes_are_those_of_their_training_images(written):
    start = ["encoder.weights=imagenet", "encoder.head_init=pca"]
    assert begins(written, start, [*start, "training.seed=1"]) == [], "so few that all of them are looked at"
    parts = open_parts([written("c", *start), written("d", *start, change=trained_on(0, 1, 2))])
    (said,) = different_starts(parts)
    assert "(encoder.head_init pca, of other training images)" in said


def test_of_very_many_images_the_seed_draws_those_that_make_the_head(written):
    start = ["encoder.weights=imagenet", "encoder.head_init=pca"]
    parts = open_parts([written("a", *start), written("b", *start, "training.seed=1")])

    def many(part):
        split = dataclasses.replace(part.split, splits=np.full(MOST_IMAGES + 1, "train"))
        return Part(part.path, part.folder, part.recipe, split, part.scores)

    assert len(different_starts([many(part) for part in parts])) == 1


def test_each_is_held_against_the_first(written):
    paths = [written("a"), written("b", "training.seed=1"), written("c"), written("d", "training.seed=2")]
    said = different_starts(open_parts(paths))
    assert [text.split()[0] for text in said] == [str(paths[1]), str(paths[3])]
