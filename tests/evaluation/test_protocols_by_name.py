"""Each protocol on a table small enough to write its rows out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.evaluation.protocol import SELECTED_ON_TEST, EvaluationSet, Protocol, select_by
from nearkin.recipe import ProtocolSection


def table(labels, splits):
    return ImageTable.build("toy", np.zeros((len(labels), 4, 4), dtype=np.uint8), list(labels), splits=list(splits))


def halves():
    """Eight training classes of two images, a to h, then two test classes; the rows of a class are not neighbours."""
    return table("abcdefghij" * 2, (["train"] * 8 + ["test"] * 2) * 2)


def test_query_gallery_searches_the_queries_in_the_gallery():
    data = table("aabbccdd", ["train"] * 4 + ["query", "gallery", "gallery", "query"])
    protocol = Protocol(ProtocolSection(name="query-gallery"), data)
    protocol.check_trainable()
    assert protocol.train_rows.tolist() == [0, 1, 2, 3]
    assert (protocol.test.query.tolist(), protocol.test.gallery.tolist()) == ([4, 7], [5, 6])
    assert protocol.test.rows.tolist() == [4, 7, 5, 6]
    assert protocol.validation is None
    assert protocol.selection_set() is protocol.test
    assert protocol.selection_rule == "best R@1 of the test queries in their gallery"
    embedding = torch.eye(4)[torch.from_numpy(data.labels)]
    scores = protocol.score(protocol.test, lambda rows: embedding[torch.from_numpy(rows)], distance="cosine")
    assert scores["R@1"] == 1.0


@pytest.mark.parametrize("splits", [["train"] * 8, ["train"] * 4 + ["query"] * 4], ids=["neither", "one"])
def test_query_gallery_refuses_data_without_them(splits):
    protocol = Protocol(ProtocolSection(name="query-gallery"), table("aabbccdd", splits))
    with pytest.raises(DataError, match=r"'toy' lacks one: use protocol\.name=conventional"):
        protocol.check_trainable()


def test_in_distribution_keeps_a_split_by_image():
    data = table("abcabc" + "abc", ["train"] * 6 + ["test"] * 3)
    protocol = Protocol(ProtocolSection(name="in-distribution"), data)
    protocol.check_trainable()
    assert protocol.train_rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert protocol.test.query.tolist() == [6, 7, 8]
    assert protocol.test_classes == "classes also seen in training"
    assert (protocol.selects_on, protocol.selection_rule) == ("last", "last epoch")
    assert protocol.selection_set() is None


def test_in_distribution_splits_every_class_by_image_where_there_is_no_split():
    data = table("a" * 10 + "b" * 8 + "c" * 3 + "d" * 2, ["train"] * 23)
    protocol = Protocol(ProtocolSection(name="in-distribution", test_share=0.3), data)
    protocol.check_trainable()
    tested = np.bincount(data.labels[protocol.test.query], minlength=4)
    assert tested.tolist() == [3, 2, 2, 0], "2.4 is 2, at least two, and a pair only trains"
    assert np.bincount(data.labels[protocol.train_rows]).tolist() == [7, 6, 1, 2]
    assert sorted([*protocol.train_rows, *protocol.test.query]) == list(range(23))
    other = Protocol(ProtocolSection(name="in-distribution", test_share=0.3, split_seed=1), data)
    assert other.test.query.tolist() != protocol.test.query.tolist()


def test_in_distribution_refuses_test_classes_that_do_not_train():
    with pytest.raises(DataError, match=r"2 of the 2 test classes of 'toy' have no training image"):
        Protocol(ProtocolSection(name="in-distribution"), halves()).check_trainable()


@pytest.mark.parametrize(("fold", "held_out"), [(0, "ab"), (1, "cd"), (2, "ef"), (3, "gh")], ids=["0", "1", "2", "3"])
def test_mlrc_holds_out_contiguous_classes(fold, held_out):
    data = halves()
    protocol = Protocol(ProtocolSection(name="mlrc", fold=fold), data)
    protocol.check_trainable()
    expected = ["abcdefgh".index(name) for name in held_out]
    assert protocol.validation.query.tolist() == [*expected, *(row + 10 for row in expected)]
    assert protocol.train_rows.tolist() == [row for row in range(20) if row % 10 < 8 and row % 10 not in expected]
    assert protocol.test.query.tolist() == [8, 9, 18, 19]
    assert protocol.selection_set() is protocol.validation
    assert protocol.selection_rule == f"best MAP@R on the held-out class fold {fold} of 0–3"


def test_mlrc_folds_cover_the_training_classes_once_and_never_the_test_classes():
    data = table("abcdefghijk" * 3, ["train"] * 33)
    parts = []
    for fold in range(3):
        protocol = Protocol(ProtocolSection(name="mlrc", folds=3, fold=fold, test_share=0.2), data)
        train, validation, test = (
            set(data.labels[rows].tolist())
            for rows in (protocol.train_rows, protocol.validation.query, protocol.test.query)
        )
        assert not (train & validation | train & test | validation & test)
        assert train | validation | test == set(range(11))
        parts.append((sorted(validation), test))
    assert parts[0][1] == parts[1][1] == parts[2][1]
    folds = [classes for classes, _ in parts]
    assert [len(classes) for classes in folds] == [3, 3, 3]
    assert [label for classes in folds for label in classes] == sorted(set(range(11)) - parts[0][1]), (
        "contiguous and in order"
    )


def test_mlrc_cuts_a_validation_split_into_folds_like_the_rest():
    data = table("aabbccddee", ["train"] * 4 + ["validation"] * 4 + ["test"] * 2)
    protocol = Protocol(ProtocolSection(name="mlrc", folds=2, fold=0), data)
    assert protocol.validation.query.tolist() == [0, 1, 2, 3]
    assert protocol.train_rows.tolist() == [4, 5, 6, 7]


def test_mlrc_refuses_what_it_cannot_cut():
    def check(data, **options):
        Protocol(ProtocolSection(name="mlrc", **options), data).check_trainable()

    with pytest.raises(
        DataError, match=r"8 classes that are not tested; 5 folds of at least 2 need 10.*protocol\.folds"
    ):
        check(halves(), folds=5)
    with pytest.raises(DataError, match=r"no test classes.*protocol\.test_share"):
        check(table("abcdefgh" * 2, ["train"] * 16), test_share=0.0)
    single = table("ab" + "cdcd" + "efef", ["train"] * 6 + ["test"] * 4)
    with pytest.raises(DataError, match="held-out class fold 0 of 'toy' has another of its class"):
        check(single, folds=2)


@pytest.mark.parametrize("name", ["query-gallery", "mlrc", "in-distribution"])
def test_scoring_other_data_needs_no_split_to_train(name):
    data = table("aabb", ["test"] * 4)
    protocol = Protocol(ProtocolSection(name=name), data)
    everything = EvaluationSet(np.arange(4))
    embedding = torch.eye(2)[torch.from_numpy(data.labels)]
    scores = protocol.score(everything, lambda rows: embedding[torch.from_numpy(rows)], distance="cosine")
    assert scores["MAP@R"] == 1.0
    with pytest.raises(DataError):
        protocol.check_trainable()


def test_every_protocol_says_how_its_epoch_is_chosen():
    rules = {
        "conventional": "best R@1 on the test classes",
        "validation": "best R@1 on the validation classes, ties within its error decided by MAP@R",
        "mlrc": "best MAP@R on the held-out class fold 0 of 0–3",
        "in-distribution": "last epoch",
    }
    for name, rule in rules.items():
        protocol = Protocol(ProtocolSection(name=name), halves())
        assert protocol.selection_rule == rule
        assert protocol.select_by == select_by(protocol.section)
    chosen = ProtocolSection(name="mlrc", select_by="P@R", folds=2, fold=1)
    assert Protocol(chosen, halves()).selection_rule == "best P@R on the held-out class fold 1 of 0–1"
    assert [name for name in rules if Protocol(ProtocolSection(name=name), halves()).selects_on == "test"] == [
        name for name in rules if name in SELECTED_ON_TEST
    ]
