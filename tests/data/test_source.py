from __future__ import annotations

from pathlib import Path

import pytest

from nearkin.data.source import collect_images, data_root, is_benchmark, read_source
from nearkin.errors import DataError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    for kind in ("owl", "tit"):
        (tmp_path / "birds" / kind).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "birds" / kind / f"{number}.jpg").touch()
    return tmp_path


def test_a_folder_and_a_list_of_it_are_the_same_images(here):
    table = read_source("birds")
    assert (len(table), table.class_names) == (4, ("owl", "tit"))
    (here / "list.csv").write_text("path,label\n" + "".join(f"birds/{name},{name[:3]}\n" for name in table.ids))
    listed = read_source(here / "list.csv")
    assert [path.resolve() for path in listed.images] == [path.resolve() for path in table.images]
    assert listed.labels.tolist() == table.labels.tolist()


def test_a_benchmark_wins_over_a_folder_of_its_name_unless_that_is_written_as_a_path(here):
    (here / "birds").rename(here / "cub")
    assert is_benchmark("cub")
    assert not is_benchmark("./cub")
    with pytest.raises(DataError):
        read_source("cub")
    assert read_source("./cub").class_names == ("owl", "tit")


def test_which_folders_are_classes_is_handed_on(here):
    (here / "birds" / "owl" / "young").mkdir()
    (here / "birds" / "owl" / "young" / "0.jpg").touch()
    assert len(read_source("birds", class_folders="top").class_names) == 2
    assert len(read_source("birds", class_folders="deepest").class_names) == 3


@pytest.mark.parametrize(
    ("source", "named"),
    [("brids", "birds"), ("glyfs", "did you mean 'glyphs'"), ("a/b", "a/b"), ("list.cvs", "did you mean 'list.csv'")],
)
def test_what_does_not_exist_gets_the_nearest_name(here, source, named):
    (here / "list.csv").touch()
    with pytest.raises(DataError, match=named):
        read_source(source)


def test_the_data_root_is_the_given_one_or_that_of_the_environment_or_the_folder_here(here, monkeypatch):
    assert data_root() is None
    (here / "data").mkdir()
    assert data_root() == Path("data")
    monkeypatch.setenv("NEARKIN_DATA", "~/sets")
    assert data_root() == Path.home() / "sets"
    assert data_root("elsewhere") == Path("elsewhere")


def test_images_of_several_sources_are_taken_once(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = collect_images("own photos")
    assert table.ids[0] == "blaue Möwe/Bild 0 ä.png"
    several = collect_images(["own photos/kiwi/Bild 0 ä.png", "own photos", "own photos/kiwi"])
    assert len(several) == 48, "each image once"
    assert several.ids[:2] == ("own photos/kiwi/Bild 0 ä.png", "own photos/blaue Möwe/Bild 0 ä.png")
    assert [several.class_names[label] for label in several.labels[:2]] == ["", "blaue Möwe"]
    with pytest.raises(DataError, match=r"no image, folder or manifest 'own fotos'; did you mean 'own photos'\?"):
        collect_images("own fotos")
