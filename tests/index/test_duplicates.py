"""The same picture stored again, and pictures that the encoder cannot tell apart."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from nearkin.errors import RecipeError
from nearkin.index import fingerprint
from nearkin.index.duplicates import near, same_picture
from nearkin.index.fingerprint import are_alike, brightness, pairs_within, perceptual_hash
from nearkin.index.index import Index


def scene(seed, width=160, height=120):
    """A picture of its own: soft shapes of several sizes, as photos have, and a little grain."""
    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), rng.uniform(90, 160, 3))
    y, x = np.mgrid[0:height, 0:width]
    for _ in range(30):
        radius = rng.uniform(0.04, 0.4) * width
        away = np.hypot(y - rng.uniform(0, height), (x - rng.uniform(0, width)) * rng.uniform(0.5, 2))
        pixels += np.clip(radius - away, 0, 8)[..., None] / 8 * rng.uniform(-30, 30, 3)
    return Image.fromarray((pixels + rng.normal(0, 4, pixels.shape)).clip(0, 255).astype(np.uint8))


def encoded(image, kind="JPEG", **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


SAME = {
    "encoded again": lambda image: encoded(image, quality=40),
    "another format": lambda image: encoded(image, "WEBP", quality=60),
    "half the size": lambda image: encoded(image.resize((80, 60), Image.Resampling.LANCZOS), "PNG"),
    "larger": lambda image: encoded(image.resize((400, 300), Image.Resampling.BICUBIC), quality=90),
    "brighter": lambda image: encoded(ImageEnhance.Brightness(image).enhance(1.1), "PNG"),
    "darker": lambda image: encoded(ImageEnhance.Brightness(image).enhance(0.8), "PNG"),
    "grey": lambda image: encoded(image.convert("L"), "PNG"),
}
OTHER = {
    "mirrored": lambda image: encoded(ImageOps.mirror(image), "PNG"),
    "upside down": lambda image: encoded(ImageOps.flip(image), "PNG"),
    "turned": lambda image: encoded(image.rotate(90, expand=True), "PNG"),
}


def bits(one, other):
    return (one ^ other).bit_count()


def test_the_same_picture_is_near_and_alike_and_others_are_not():
    pictures = [brightness(encoded(scene(seed), "PNG")) for seed in range(30)]
    hashes = [perceptual_hash(picture) for picture in pictures]
    for seed in range(6):
        for name, change in SAME.items():
            changed = brightness(change(scene(seed)))
            assert bits(hashes[seed], perceptual_hash(changed)) <= fingerprint.MOST_BITS, (seed, name)
            assert are_alike(pictures[seed], changed), (seed, name)
        for name, change in OTHER.items():
            assert bits(hashes[seed], perceptual_hash(brightness(change(scene(seed))))) > 16, (seed, name)
    pairs = [(a, b) for a in range(30) for b in range(a)]
    assert min(bits(hashes[a], hashes[b]) for a, b in pairs) > fingerprint.MOST_BITS
    for a, b in pairs[:200]:
        by_numpy = np.corrcoef(pictures[a].ravel(), pictures[b].ravel())[0, 1]
        assert are_alike(pictures[a], pictures[b]) == (by_numpy >= fingerprint.LEAST_CORRELATION)


def test_a_hash_is_signs_of_the_cosine_transform_written_out():
    image = scene(3).convert("L").resize((32, 32), Image.Resampling.BILINEAR)
    grey = np.asarray(image, dtype=np.float64)
    order = [(0, 1), (1, 0), (0, 2), (1, 1), (2, 0)]
    bits_found = f"{perceptual_hash(brightness(encoded(image, 'PNG'))):064b}"
    for place, (u, v) in enumerate(order):
        total = 0.0
        for y in range(32):
            for x in range(32):
                total += grey[y, x] * np.cos(np.pi * u * (2 * y + 1) / 64) * np.cos(np.pi * v * (2 * x + 1) / 64)
        assert bits_found[place] == ("1" if total > 0 else "0")


@pytest.mark.parametrize(("most", "at_once"), [(0, 50), (3, 1024), (8, 50)])
def test_every_pair_within_so_many_bits_is_found_and_no_other(most, at_once, monkeypatch):
    monkeypatch.setattr(fingerprint, "_HASHES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 1 << 63, 40, dtype=np.uint64)
    hashes = []
    for centre in centres.tolist():
        for flips in range(8):
            turned = rng.choice(64, flips, replace=False)
            hashes.append(centre ^ sum(1 << int(bit) for bit in turned))
    hashes = np.unique(np.array(hashes, dtype=np.uint64))
    found = {tuple(pair) for part in pairs_within(hashes, most) for pair in part.tolist()}
    as_ints = hashes.tolist()
    expected = {(a, b) for b in range(len(as_ints)) for a in range(b) if (as_ints[a] ^ as_ints[b]).bit_count() <= most}
    assert found == expected
    assert bool(expected) == (most > 0)
    assert list(pairs_within(np.empty(0, dtype=np.uint64), most)) == []


@pytest.fixture
def index(tmp_path, model):
    """Five scenes, the first in all its forms; and two blank pictures."""
    folder = tmp_path / "scenes"
    folder.mkdir()
    for seed in range(5):
        (folder / f"scene {seed}.png").write_bytes(encoded(scene(seed), "PNG"))
    for name, change in (SAME | OTHER).items():
        (folder / f"{name}.img.png").write_bytes(change(scene(0)))
    for name in ("black", "white"):
        (folder / f"{name}.png").write_bytes(encoded(Image.new("RGB", (40, 30), name), "PNG"))
    made = Index.create(tmp_path / "index", replace(model, shorter_side=256))
    made.add(folder, labels=None)
    return made


def names(index, ids):
    return {item.path.rpartition("/")[2].partition(".")[0] for item in index.items(ids)}


def test_same_picture(index, monkeypatch):
    found = same_picture(index)
    assert found.question == "same picture"
    assert [names(index, group) for group in found.groups] == [{"scene 0", *SAME}]
    assert names(index, found.blank) == {"black", "white"}
    alike = dict.fromkeys(index._items.fingerprints(index.ids()), 5)
    monkeypatch.setattr(index._items, "fingerprints", lambda ids: alike)  # were all hashes the same
    assert {"scene 0", *SAME} in [names(index, group) for group in same_picture(index).groups]
    assert not any(names(index, group) & {"scene 1", *OTHER} for group in same_picture(index).groups)
    monkeypatch.undo()
    (group,) = found.groups
    index.remove(group[1:])
    assert same_picture(index).groups == ()
    with pytest.raises(RecipeError, match="0 to 16 of 64 bits"):
        same_picture(index, most_bits=17)


def test_copies_of_one_photo_are_one_hit(index, tmp_path, model):
    query = Image.open(tmp_path / "scenes" / "scene 0.png")
    every = index.search(query, k=15)
    assert {hit.copies for hit in every} == {1}
    hits = index.search(query, k=9, collapse=True)
    assert len(hits) == 9, "as many photos as were asked for"
    assert hits[0].copies == len(SAME), "all but the grey one, as colours count too"
    assert len(hits[0].copy_ids) == len(SAME) - 1
    assert names(index, [hits[0].id, *hits[0].copy_ids]) < {"scene 0", *SAME}
    assert [hit.copies for hit in hits[1:]] == [1] * 8
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    pages = [index.search(query, k=3, offset=offset, collapse=True) for offset in (0, 3, 6)]
    assert [hit.id for page in pages for hit in page] == [hit.id for hit in hits]
    assert len(index.search(query, k=30, collapse=True)) == len(index) - len(SAME) + 1
    assert len(index.search([query, 4], k=3, collapse=True)[1]) == 3
    different = Index.create(tmp_path / "labelled", replace(model, shorter_side=256))
    paths = [hit.path for hit in every if hit.id in same_picture(index).groups[0] and "grey" not in hit.path]
    different.add(paths, [f"label {number % 2}" for number in range(len(paths))])
    copies = {hit.label: hit.copies for hit in different.search(query, collapse=True)}
    assert copies == {"label 0": 4, "label 1": 3}, "with different labels they stay apart"


def test_near_is_another_question_every_pair_counts(tmp_path, images, model, write_images, monkeypatch):
    index = Index.create(tmp_path / "index", model)
    index.add(write_images(tmp_path / "many", kinds=5, per_kind=30, seed=3))
    index.remove([7, 8])
    ids = index.ids()
    vectors = index.vectors(ids).astype(np.float64)
    scores = vectors @ vectors.T
    between = np.sort(scores[np.triu_indices(len(ids), 1)])[-450:-350]
    widest = int(np.argmax(np.diff(between)))  # a threshold that no rounding reaches
    least = float(between[widest : widest + 2].mean())
    assert between[widest + 1] - between[widest] > 1e-6
    joined = np.eye(len(ids), dtype=bool) | (scores >= least)
    for _ in range(8):
        joined = joined @ joined
    expected = {tuple(ids[row].tolist()) for row in joined if row.sum() > 1}
    found = near(index, min_score=least)
    assert set(found.groups) == expected
    assert max(map(len, found.groups)) > 16, "more than a search asks for at first"
    assert [len(group) for group in found.groups] == sorted(map(len, found.groups), reverse=True)
    sure = near(index, min_confidence=0.9).groups
    pairs = {(id, hit.id) for id in ids.tolist() for hit in index.search(id, k=200) if (hit.confidence or 0) >= 0.9}
    assert {id for pair in pairs for id in pair} == {id for group in sure for id in group}
    some = near(index, min_score=least, where={"label": "kind 1"}).groups
    assert {index.get(id).label for group in some for id in group} == {"kind 1"}


def test_near_needs_something_to_go_by(tmp_path, model, images):
    index = Index.create(tmp_path / "index", model)
    index.add(images, labels=None)
    with pytest.raises(RecipeError, match="--min-score"):
        near(index)
    with pytest.raises(RecipeError, match="not both"):
        near(index, min_score=0.9, min_confidence=0.9)
    assert near(index, min_score=1.1).groups == ()
