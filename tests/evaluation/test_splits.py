"""Small data and wrong labels: how much, which, and that what is tested stays as it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.splits import with_wrong_labels
from nearkin.recipe import ProtocolSection

SIZES = (59, 30, 41, 3, 1, 60, 58, 12)


@pytest.fixture(scope="module")
def data():
    """Training classes of different sizes in mixed order, and two test classes."""
    labels = np.repeat(np.arange(len(SIZES)), SIZES)
    labels = np.concatenate([np.random.default_rng(0).permutation(labels), [8, 8, 9, 9]])
    splits = ["train"] * sum(SIZES) + ["test"] * 4
    pixels = np.zeros((len(labels), 4, 4), dtype=np.uint8)
    return ImageTable.build("toy", pixels, [f"k{label}" for label in labels], splits=splits)


def counts(data, rows):
    return {
        data.class_names[label]: int(n)
        for label, n in zip(*np.unique(data.labels[rows], return_counts=True), strict=True)
    }


def test_small_data_leaves_a_share_of_every_class_and_at_least_one(data):
    # 2 % of 59 is 1.18 and 10 % is 5.9: one to six images of a class, as VCPA says for CUB.
    expected = {
        0.02: {59: 1, 30: 1, 41: 1, 3: 1, 1: 1, 60: 1, 58: 1, 12: 1},
        0.05: {59: 3, 30: 2, 41: 2, 3: 1, 1: 1, 60: 3, 58: 3, 12: 1},
        0.1: {59: 6, 30: 3, 41: 4, 3: 1, 1: 1, 60: 6, 58: 6, 12: 1},
    }
    whole = Protocol(ProtocolSection(), data)
    for share, images in expected.items():
        protocol = Protocol(ProtocolSection(train_share=share), data)
        assert counts(data, protocol.train_rows) == {f"k{label}": images[size] for label, size in enumerate(SIZES)}
        assert np.all(np.diff(protocol.train_rows) > 0)
        assert protocol.test.query.tolist() == whole.test.query.tolist()
        assert protocol.training_labels().tolist() == data.labels[protocol.train_rows].tolist()
    assert whole.train_rows.tolist() == list(range(sum(SIZES)))
    assert whole.training_conditions is None


def test_a_larger_share_holds_a_smaller_one(data):
    def rows(share, seed=0):
        return set(Protocol(ProtocolSection(train_share=share, split_seed=seed), data).train_rows.tolist())

    shares = (0.02, 0.05, 0.1, 0.35, 0.9, 1.0)
    chosen = [rows(share) for share in shares]
    for smaller, larger in itertools.pairwise(chosen):
        assert smaller < larger
    assert rows(0.05) == rows(0.05)
    assert rows(0.05) != rows(0.05, seed=1)
    # A class keeps its images whatever other classes there are.
    half = data.take(np.flatnonzero(np.isin(data.labels, [data.class_names.index(f"k{k}") for k in (0, 1, 2, 8, 9)])))
    kept = {half.ids[row] for row in Protocol(ProtocolSection(train_share=0.1), half).train_rows}
    assert kept < {data.ids[row] for row in rows(0.1)}


def test_small_data_is_said(data):
    protocol = Protocol(ProtocolSection(train_share=0.1), data)
    assert len(protocol.train_rows) == 6 + 3 + 4 + 1 + 1 + 6 + 6 + 1
    assert protocol.training_conditions == "10 % of the training images of each class"
    both = Protocol(ProtocolSection(train_share=0.025, label_noise=0.5), data).training_conditions
    assert both == "2.5 % of the training images of each class, 50 % of the training labels replaced"


def test_small_data_does_not_touch_the_fold_that_chooses(data):
    def protocol(share):
        return Protocol(ProtocolSection(name="mlrc", folds=2, fold=1, train_share=share), data)

    assert protocol(0.1).validation.query.tolist() == protocol(1.0).validation.query.tolist()
    assert len(protocol(0.1).train_rows) < len(protocol(1.0).train_rows)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_the_share_of_wrong_labels_is_exact(data, share):
    protocol = Protocol(ProtocolSection(label_noise=share), data)
    true = np.array([sorted({*data.labels[protocol.train_rows]}).index(k) for k in data.labels[protocol.train_rows]])
    wrong = protocol.training_labels()
    assert (wrong != true).sum() == protocol.replaced_labels == round(share * 264)
    assert set(wrong[wrong != true].tolist()) <= set(range(8)), "training classes only"
    assert set(wrong[wrong == true].tolist()) == set(range(8)), "every class keeps an image of its own"
    assert protocol.train_rows.tolist() == list(range(264))


def test_wrong_labels_are_seeded_nested_and_spread_over_the_other_classes():
    labels = np.repeat(np.arange(10), 200)
    some, more = (with_wrong_labels(labels, share, seed=3) for share in (0.2, 0.6))
    changed = some != labels
    assert np.array_equal(some[changed], more[changed])
    assert np.array_equal(more, with_wrong_labels(labels, 0.6, seed=3))
    assert not np.array_equal(more, with_wrong_labels(labels, 0.6, seed=4))
    moved = np.zeros((10, 10), dtype=int)
    np.add.at(moved, (labels[more != labels], more[more != labels]), 1)
    assert np.diag(moved).sum() == 0
    off_diagonal = moved[~np.eye(10, dtype=bool)]
    assert off_diagonal.sum() == 1200
    # 90 cells with 13.3 expected each: chi-square of 89 degrees of freedom is below 150 but for 1 in 10,000.
    assert ((off_diagonal - 1200 / 90) ** 2 / (1200 / 90)).sum() < 150


def test_wrong_labels_leave_what_is_scored_alone(data):
    section = ProtocolSection(name="mlrc", folds=2, fold=0, label_noise=0.4)
    protocol, clean = Protocol(section, data), Protocol(ProtocolSection(name="mlrc", folds=2, fold=0), data)
    before = data.labels.copy()
    protocol.training_labels()
    assert np.array_equal(data.labels, before)
    assert protocol.table is data
    assert protocol.validation.query.tolist() == clean.validation.query.tolist()
    assert protocol.test.query.tolist() == clean.test.query.tolist()
    assert protocol.training_conditions == "40 % of the training labels replaced"
    assert protocol.replaced_labels == round(0.4 * len(protocol.train_rows))


def test_more_noise_than_there_is_room_for_is_refused(data):
    protocol = Protocol(ProtocolSection(train_share=0.02, label_noise=0.5), data)
    with pytest.raises(DataError, match=r"protocol\.label_noise=0\.5 would replace 4 of 8.*at most 0 can be replaced"):
        protocol.check_trainable()


def test_in_distribution_a_share_of_every_class_is_tested_and_two_images_at_least():
    sizes = (2, 3, 4, 10, 40)
    names = np.repeat([f"k{number}" for number in range(5)], sizes).tolist()
    table = ImageTable.build("toy", np.zeros((len(names), 4, 4), dtype=np.uint8), names, splits=["train"] * len(names))
    tested = Protocol(ProtocolSection(name="in-distribution", test_share=0.3), table).test.query
    # A class of two only trains; 30 % of three and four are one, which could not find another.
    assert counts(table, tested) == {"k1": 2, "k2": 2, "k3": 3, "k4": 12}


def test_a_tenth_of_each_large_class_is_held_out(data):
    protocol = Protocol(ProtocolSection(holdout_share=0.1), data)
    # 10 % of 59 is 5.9; classes of 3 images and of 1 are below the eight that it takes.
    expected = {59: 6, 30: 3, 41: 4, 60: 6, 58: 6, 12: 1}
    assert counts(data, protocol.holdout) == {f"k{k}": expected[n] for k, n in enumerate(SIZES) if n in expected}
    assert not np.intersect1d(protocol.holdout, protocol.train_rows).size
    whole = Protocol(ProtocolSection(), data)
    assert np.union1d(protocol.holdout, protocol.train_rows).tolist() == whole.train_rows.tolist()
    assert protocol.test.query.tolist() == whole.test.query.tolist()
    assert not len(whole.holdout)


def test_a_final_model_holds_the_same_images_out_and_can_be_told_not_to(data):
    scored = Protocol(ProtocolSection(holdout_share=0.1), data)
    final = Protocol(ProtocolSection(name="everything"), data)
    assert set(scored.holdout.tolist()) <= set(final.holdout.tolist())
    assert len(final.train_rows) + len(final.holdout) == len(data)
    assert not len(Protocol(ProtocolSection(name="everything", holdout_share=0.0), data).holdout)
