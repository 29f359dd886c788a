from __future__ import annotations

import io
import pickle
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from nearkin.data import crop_worker
from nearkin.data.crop_worker import Job, Setup
from nearkin.data.transforms import ImageRandom, transform_from

TRANSFORM = transform_from("mild", size=8)


class Images(list):
    """Pixels, and an error where there are none."""

    def __getitem__(self, row):
        if row >= len(self):
            raise OSError("disk gone")
        return super().__getitem__(row)


@pytest.fixture
def answers(monkeypatch):
    """What the worker answers to what it is sent."""

    def run(*sent):
        out = io.BytesIO()
        monkeypatch.setattr(crop_worker.signal, "signal", lambda *_: None)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"".join(sent))))
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        crop_worker.main()
        out.seek(0)
        found = []
        while out.tell() < len(out.getvalue()):
            found.append(pickle.load(out))
        return found

    return run


def test_jobs_are_done_in_their_slots_and_errors_are_answers(answers):
    images = Images(np.random.default_rng(0).integers(0, 256, (3, 12, 14, 3), dtype=np.uint8))
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * 4 * 8 * 8 * 3)
        setup = Setup(images, TRANSFORM, 5, file.fileno(), (2, 4, 8, 8, 3))
        jobs = [Job(7, 10, [2, 0], slot=1, begin=1), Job(8, 0, [9], slot=0, begin=0), Job(8, 0, [1], slot=0, begin=3)]
        done, failed, after = answers(*map(pickle.dumps, [pickle.dumps(setup), *jobs]))
        pixels = np.frombuffer(file.read(), np.uint8).reshape(setup.shape)
    assert done is None
    assert after is None
    assert isinstance(failed, OSError)
    assert "disk gone" in str(failed)
    assert np.array_equal(pixels[1, 1], TRANSFORM.train(images[2], ImageRandom(5).at(7, 10)))
    assert np.array_equal(pixels[1, 2], TRANSFORM.train(images[0], ImageRandom(5).at(7, 11)))
    assert np.array_equal(pixels[0, 3], TRANSFORM.train(images[1], ImageRandom(5).at(8, 0)))
    assert not pixels[0, :3].any()


def test_without_a_setup_nothing_is_answered_and_a_bad_one_is(answers):
    assert answers() == []
    no_file = Setup(Images(), TRANSFORM, 0, -2, (1, 1, 8, 8, 3))
    for bad in (pickle.dumps(no_file), pickle.dumps(no_file)[:-5]):
        first, second = answers(pickle.dumps(bad), pickle.dumps("a job"), pickle.dumps("another"))
        assert isinstance(first, Exception)
        assert str(first) == str(second)
