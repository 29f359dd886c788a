"""Images are known again by their content, and keep the class and the part of the split that they had."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.splits import StoredSplit
from nearkin.recipe import ProtocolSection

CLASSES = [f"class {letter}" for letter in "abcdefgh"]


def opened(names=None, *, drop=(), change=(), new=()):
    """Three images of each of eight classes; image k is grey k. ``names`` renames classes."""
    names = names or {}
    rows = []
    for number in range(24):
        if number not in drop:
            name = names.get(CLASSES[number // 3], CLASSES[number // 3])
            rows.append((f"{name}/{number % 3}", name, 100 + number if number in change else number))
    rows += [(f"{name}/new {grey}", name, grey) for name, grey in new]
    rows.sort()
    pixels = np.stack([np.full((4, 4), grey, dtype=np.uint8) for _, _, grey in rows])
    classes = [name for _, name, _ in rows]
    table = ImageTable.build("toy", pixels, classes, splits=["train"] * len(rows), ids=[name for name, _, _ in rows])
    return open_images(table, cache_dir=None)


def stored(data, **options):
    protocol = Protocol(ProtocolSection(name="validation", test_share=0.25, **options), data.table)
    return StoredSplit.from_csv(StoredSplit.of(data.table, protocol.splits, data.digests).to_csv())


def described(data, splits):
    """Grey, class and split of every image, in order."""
    greys = [int(data.images[row][0, 0, 0]) for row in range(len(data.table))]
    classes = [data.table.class_names[label] for label in data.table.labels]
    return list(zip(greys, classes, splits.tolist(), strict=True))


def test_the_file_holds_every_image_with_its_part():
    data = opened()
    split = stored(data, train_share=0.67)
    assert {name: int((split.splits == name).sum()) for name in np.unique(split.splits)} == {
        "test": 6,
        "validation": 6,
        "train": 8,
        "unused": 4,
    }
    again, splits, changes = split.restore(data)
    assert again is data, "nothing has changed, so nothing is copied"
    assert np.array_equal(splits, split.splits)
    assert changes.describe(scored=("test",)) == []


def test_renamed_classes_and_new_images_move_nobody():
    split = stored(opened())
    before = described(opened(), split.splits)
    renamed = {"class a": "zebra", "class h": "aardvark"}
    now = opened(renamed, new=[("class 0", 50), ("class 0", 51), ("class b", 52)])
    data, splits, changes = split.restore(now)
    assert described(data, splits) == before
    assert np.array_equal(data.table.labels, split.labels)
    new, other = changes.describe(scored=("test",))
    assert new.startswith("3 images of 1 new class and others came after the run began: left out (class 0)")
    assert other.startswith("6 images in another class than when the run began (class a → zebra")
    changes.check_training("run")
    protocol = Protocol(ProtocolSection(name="validation"), data.table, splits=splits)
    assert protocol.test_classes == "classes never seen in training"


def test_what_is_lost_is_counted_by_its_part():
    split = stored(opened())
    rows = {name: np.flatnonzero(split.splits == name).tolist() for name in ("train", "test")}
    _, _, changes = split.restore(opened(drop=rows["test"][:1], change=rows["test"][1:2]))
    (line,) = changes.describe(scored=("test",))
    assert line.startswith("2 of 6 test images missing or changed (")
    assert line.endswith("scored without them")
    changes.check_training("run")
    data, splits, changes = split.restore(opened(drop=rows["train"][:1]))
    assert (splits == "train").sum() == len(rows["train"]) - 1 == len(data.digests) - 12
    with pytest.raises(DataError, match=r"1 of 12 training images missing \(class .*of run cannot .*--overwrite"):
        changes.check_training("run")
    with pytest.raises(DataError, match=r"2 of 12 training images changed \("):
        split.restore(opened(change=rows["train"][:2]))[2].check_training("run")


def test_images_of_a_benchmark_that_were_drawn_anew_are_scored_but_not_trained_on():
    split = stored(opened())
    tests, trains = (np.flatnonzero(split.splits == name).tolist() for name in ("test", "train"))
    data, splits, changes = split.restore(opened(change=tests[:2], drop=tests[2:3]), by_name=True)
    gone, changed = changes.describe(scored=("test",))
    assert gone.startswith("1 of 6 test images missing (")
    assert changed.startswith("2 of 6 test images changed (")
    assert changed.endswith("scored as they are now")
    greys = [grey for grey, _, part in described(data, splits) if part == "test"]
    assert greys == [100 + tests[0], 100 + tests[1], *tests[3:]]
    with pytest.raises(DataError, match="1 of 12 training images changed"):
        split.restore(opened(change=trains[:1]), by_name=True)[2].check_training("run")


def test_two_files_with_the_same_content_stay_apart_and_one_of_them_suffices():
    def twins(drop=()):
        data = opened(new=[("class a", 1), ("class h", 1)])
        kept = [row for row in range(len(data.table)) if data.table.ids[row] not in drop]
        return open_images(data.table.take(kept), cache_dir=None)

    split = stored(twins())
    whole = described(twins(), split.splits)
    data, splits, changes = split.restore(twins(drop=["class a/1"]))
    assert described(data, splits) == whole
    assert not any(changes.lost.values())


@pytest.mark.parametrize("cut", [0, 20, 200, -1])
def test_half_a_file_is_not_taken_for_a_whole_one(cut):
    content = StoredSplit.of(opened().table, np.full(24, "train"), opened().digests).to_csv()
    with pytest.raises(ValueError, match=r"line|end"):
        StoredSplit.from_csv(content[:cut])


def test_names_with_commas_quotes_and_line_breaks_come_back():
    data = opened({"class a": 'a, "b"\nc'})
    split = stored(data)
    assert split.ids == data.table.ids
    assert split.class_names == data.table.class_names


@pytest.mark.parametrize(
    ("protocol", "noise"), [("conventional", 0.2), ("validation", 0.2), ("mlrc", 0.2), ("in-distribution", 0.0)]
)
def test_a_protocol_with_given_splits_is_the_one_that_drew_them(protocol, noise):
    table = opened().table
    section = ProtocolSection(name=protocol, test_share=0.4, folds=2, train_share=0.67, label_noise=noise)
    drawn = Protocol(section, table)
    given = Protocol(section, table, splits=drawn.splits)
    assert np.array_equal(given.train_rows, drawn.train_rows)
    assert np.array_equal(given.training_labels(), drawn.training_labels())
    assert np.array_equal(given.test.query, drawn.test.query)
    assert given.selection_rule == drawn.selection_rule


def test_without_score_test_a_run_sees_no_test_images_but_the_split_keeps_them():
    blind = Protocol(ProtocolSection(name="mlrc", folds=2), opened().table, score_test=False)
    blind.check_trainable()
    assert blind.test is None
    assert (blind.splits == "test").any()
