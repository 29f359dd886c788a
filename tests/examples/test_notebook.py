"""The notebook is a valid one without stored output, and its cells run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_look.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)


def test_it_is_valid_and_holds_no_output(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_its_cells_run_in_order(notebook, few_glyphs, monkeypatch, capsys):
    plt.switch_backend("Agg")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: (shown.append(len(plt.gcf().axes)), plt.close("all")))
    names: dict[str, object] = {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"<cell {number}>", "exec"), names)
        if "parameters" in cell.metadata.get("tags", ()):
            names |= {"steps": 25, "images": 416}
    # pictures with so many axes
    assert shown == [40, 1, 32, 32]
    assert names["trained"]["MAP@R"] > names["untrained"]["MAP@R"]
    assert f"{names['trained']['R@1']:.1%} after" in capsys.readouterr().out
