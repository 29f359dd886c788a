from __future__ import annotations

import functools
import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from nearkin.data.benchmarks import glyphs, read_benchmark
from nearkin.data.benchmarks.glyphs import FACES, GlyphClass, distort, draw_glyphs, glyph_classes, read_glyphs
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

FEW = [GlyphClass(ord(c), {"DejaVuSans": ord(c), "STIXGeneral": ord(c)}) for c in "AB34"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def table(cache: Path) -> ImageTable:
    return read_glyphs(cache_dir=cache / "glyphs")


@pytest.fixture(scope="session")
def classes() -> list[GlyphClass]:
    return glyph_classes()


def pixels_of(table: ImageTable) -> np.ndarray:
    assert isinstance(table.images, np.ndarray)
    return table.images


def raw_recall_at_1(table: ImageTable, *, every: int = 1) -> float:
    """Of every n-th image, the share whose nearest other image, by the cosine of the pixels, is of the same class."""
    flat = pixels_of(table).reshape(len(table), -1).astype(np.float32)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    queries = np.arange(0, len(flat), every)
    similarity = flat[queries] @ flat.T
    similarity[np.arange(len(queries)), queries] = -np.inf
    return float((table.labels[similarity.argmax(axis=1)] == table.labels[queries]).mean())


@functools.cache
def font(face: str) -> ImageFont.FreeTypeFont:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    return ImageFont.truetype(str(path), 96, layout_engine=ImageFont.Layout.BASIC)


def bitmap(face: str, character: str) -> tuple[tuple[int, int], bytes]:
    canvas = Image.new("L", (288, 288))
    ImageDraw.Draw(canvas).text((96, 192), character, fill=255, font=font(face), anchor="ls")
    ink = canvas.crop(canvas.getbbox())
    return ink.size, ink.tobytes()


def assert_same(one: ImageTable, other: ImageTable) -> None:
    np.testing.assert_array_equal(pixels_of(one), pixels_of(other))
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.splits, other.splits)
    assert (one.ids, one.class_names) == (other.ids, other.class_names)
    assert one.columns.keys() == other.columns.keys() == {"face", "character"}
    for name in one.columns:
        np.testing.assert_array_equal(one.columns[name], other.columns[name])


def test_table_has_over_a_thousand_classes_of_ten_to_sixteen_images(table: ImageTable) -> None:
    sizes = np.bincount(table.labels)
    assert len(table.class_names) == len(sizes) >= 1000
    assert sizes.min() >= 10
    assert sizes.max() == len(FACES) == 16
    assert pixels_of(table).dtype == np.uint8
    assert pixels_of(table).shape == (len(table), 48, 48)
    assert len(set(table.ids)) == len(table)
    assert set(table.columns["face"].tolist()) == set(FACES)


def test_first_half_of_the_classes_by_code_point_trains(table: ImageTable) -> None:
    code_points = [int(name.split()[0].removeprefix("U+"), 16) for name in table.class_names]
    assert code_points == sorted(set(code_points))
    train, test = table.split("train").classes(), table.split("test").classes()
    np.testing.assert_array_equal(np.concatenate([train, test]), np.arange(len(code_points)))
    assert len(train) == len(code_points) // 2


def test_ids_and_names_can_be_read(table: ImageTable) -> None:
    row = table.ids.index("U+0041/DejaVuSans-Bold")
    assert table.class_names[table.labels[row]] == "U+0041 A"
    assert (table.columns["face"][row], table.columns["character"][row]) == ("DejaVuSans-Bold", "A")
    digits = {f"U+{ord(digit):04X} {digit}" for digit in "0123456789"}
    assert digits <= set(table.class_names)


@pytest.mark.parametrize("alike", ["AΑА", "OΟОՕ", "HΗН", "nп"])
def test_characters_that_look_the_same_are_one_class(table: ImageTable, alike: str) -> None:
    first, *others = (f"U+{ord(character):04X} {character}" for character in sorted(alike))
    assert first in table.class_names
    assert not set(others) & set(table.class_names)


@pytest.mark.parametrize("different", ["oO0", "sS5", "lI|", "←→↑↓", "AV∀"])
def test_characters_that_look_different_are_different_classes(table: ImageTable, different: str) -> None:
    assert {f"U+{ord(character):04X} {character}" for character in different} <= set(table.class_names)


def test_accents_marks_spaces_and_pieces_are_left_out(table: ImageTable) -> None:
    characters = set("".join(table.columns["character"].tolist()))
    assert not characters & set("Äé²½ \u0301─█⠿⎛")
    assert not {unicodedata.category(character)[0] for character in characters} & set("MZC")


def test_no_two_classes_share_a_bitmap_in_a_face(table: ImageTable) -> None:
    owner: dict[tuple[str, tuple[int, int], bytes], int] = {}
    rows = zip(table.columns["face"].tolist(), table.columns["character"].tolist(), table.labels.tolist(), strict=True)
    for face, character, label in rows:
        assert owner.setdefault((face, *bitmap(face, character)), label) == label, (face, character)
    assert len(owner) == len(table)


def test_images_do_not_depend_on_order_or_company(table: ImageTable, classes: list[GlyphClass]) -> None:
    some = draw_glyphs(classes[::-60])
    row_of = {name: row for row, name in enumerate(table.ids)}
    np.testing.assert_array_equal(pixels_of(some), pixels_of(table)[[row_of[name] for name in some.ids]])


def test_seed_size_and_strength_change_the_images() -> None:
    plain = pixels_of(draw_glyphs(FEW))
    assert (plain != pixels_of(draw_glyphs(FEW, seed=1))).mean() > 0.2
    assert (plain != pixels_of(draw_glyphs(FEW, strength=0.5))).mean() > 0.2
    assert pixels_of(draw_glyphs(FEW, size=32)).shape == (8, 32, 32)


def test_raw_pixels_fail(table: ImageTable) -> None:
    recall = raw_recall_at_1(table.split("test"), every=3)
    chance = 10 / len(table.split("test"))
    assert 5 * chance < recall < 0.15


def test_clean_glyphs_are_easy_and_never_blank(table: ImageTable, classes: list[GlyphClass]) -> None:
    some = classes[::30]
    clean = draw_glyphs(some, strength=0.0)
    inked = (pixels_of(clean) > 127).mean(axis=(1, 2))
    assert inked.min() > 0.005
    assert inked.max() < 0.8
    assert raw_recall_at_1(clean) > 2 * raw_recall_at_1(draw_glyphs(some))
    assert pixels_of(table).max(axis=(1, 2)).min() > 80
    assert pixels_of(table).std(axis=(1, 2)).min() > 8


def test_strength_zero_centres_the_glyph_and_leaves_it_upright() -> None:
    bar = Image.new("L", (8, 40), 255)
    image = distort(bar, size=48, strength=0.0, rng=np.random.default_rng(0))
    expected = np.zeros((48, 48), dtype=np.uint8)
    expected[14:34, 22:26] = 255
    np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("shape", [(200, 20), (20, 200)])
def test_a_glyph_wider_or_taller_than_the_image_is_made_to_fit(shape: tuple[int, int]) -> None:
    image = distort(Image.new("L", shape, 255), size=48, strength=0.0, rng=np.random.default_rng(0))
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert border.max() == 0
    assert image.max() > 200


def test_second_read_comes_from_the_cache(table: ImageTable, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "glyph_classes", lambda: pytest.fail("drawn again"))
    monkeypatch.setenv("NEARKIN_CACHE", str(cache))
    assert_same(read_benchmark("glyphs", None), table)
    assert [path.suffix for path in (cache / "glyphs").iterdir()] == [".npz"]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "foreign"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(glyphs, "glyph_classes", lambda: FEW)
    drawn = read_glyphs(cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    middle = len(whole) // 4
    path.write_bytes(
        {
            "empty": b"",
            "truncated": whole[: len(whole) // 2],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
            "foreign": b"not an archive",
        }[damage]
    )
    assert_same(read_glyphs(cache_dir=tmp_path), drawn)
    assert [kept.name for kept in tmp_path.iterdir()] == [path.name]
    monkeypatch.setattr(glyphs, "glyph_classes", lambda: pytest.fail("the cache was not repaired"))
    assert_same(read_glyphs(cache_dir=tmp_path), drawn)


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "glyph_classes", lambda: FEW)
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="drawn again"):
        drawn = read_glyphs(cache_dir=tmp_path / "file")
    assert len(drawn) == 8


def test_missing_font_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(DataError, match=r"DejaVuSans\.ttf"):
        glyph_classes()
