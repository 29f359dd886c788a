"""Images of files, folders and manifests given together."""

from __future__ import annotations

import pytest

from nearkin.data.source import collect_images
from nearkin.errors import DataError


def test_ids_paths_and_labels(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = collect_images("own photos")
    assert table.ids[0] == "blaue Möwe/Bild 0 ä.png"
    several = collect_images(["own photos/kiwi/Bild 0 ä.png", "own photos", "own photos/kiwi"])
    assert len(several) == 48, "each image once"
    assert several.ids[:2] == ("own photos/kiwi/Bild 0 ä.png", "own photos/blaue Möwe/Bild 0 ä.png")
    assert [several.class_names[label] for label in several.labels[:2]] == ["", "blaue Möwe"]
    with pytest.raises(DataError, match=r"no image, folder or manifest 'own fotos'; did you mean 'own photos'\?"):
        collect_images("own fotos")
