"""The tests stand as the modules do: every module has a test file of its name, or it says here which one tests it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "nearkin"
MODULES = {
    str(path.relative_to(SOURCE).with_suffix("")): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.stem not in ("__init__", "__main__")
}

ELSEWHERE = {
    "client": ["serving/test_client.py"],
    "data/benchmarks/_distortions": ["data/benchmarks/test_glyphs.py"],
    "data/folder_tree": ["data/test_folder.py"],
    "evaluation/products": ["evaluation/test_places.py", "evaluation/test_large_classes.py"],
    "evaluation/scores/_score": ["evaluation/scores/test_catalogue.py"],
    "evaluation/scores/inter_class_distance": ["evaluation/scores/test_covering_radius.py"],
    "encoders/synchronised": ["training/test_distributed.py"],
    "index/codes": ["index/test_torch_scan.py", "index/test_numpy_scan.py"],
    "index/confidence": ["index/test_index.py"],
    "index/engine": ["contracts/test_engines.py"],
    "index/items": ["index/test_index.py"],
    "index/map_neighbours": ["index/test_layout.py"],
    "index/results": ["index/test_index.py"],
    "losses/_class_block": ["losses/test__blocks.py"],
    "losses/_fused": ["losses/test__kernels.py"],
    "losses/_gathered": ["training/test_distributed.py"],
    "losses/_shards": ["losses/test__blocks.py"],
    "losses/_triton": ["losses/test__kernels.py"],
    "ranks": ["training/test_distributed.py"],
    "report/page/_parts": ["report/test_page.py"],
    "report/page/charts": ["report/test_page.py"],
    "report/page/differences": ["report/test_page.py"],
    "report/page/pictures": ["report/test_page.py"],
    "report/page/tables": ["report/test_page.py"],
    "report/plots/_maps": ["report/test_plots.py"],
    "report/plots/_runs": ["cli/test_plot.py"],
    "report/plots/_style": ["report/test_plots.py"],
    "report/plots/certainty": ["report/test_plots.py"],
    "report/plots/covering": ["report/test_plots.py"],
    "report/plots/curves": ["report/test_plots.py"],
    "report/plots/map_test": ["report/test_plots.py"],
    "report/plots/map_train": ["report/test_plots.py"],
    "report/plots/neighbours": ["report/test_plots.py"],
    "report/plots/pairs": ["report/test_plots.py"],
    "report/plots/problems": ["report/test_plots.py"],
    "report/plots/reliability": ["report/test_reliability.py"],
    "report/plots/similarity": ["report/test_plots.py"],
    "report/plots/uncertainty": ["report/test_plots.py"],
    "runs/data": ["runs/test_data_report.py"],
    "runs/run": ["training/test_loop.py", "runs/test_protocol_runs.py"],
    "samplers/balanced": ["samplers/test_samplers.py", "contracts/test_samplers.py"],
    "samplers/random": ["samplers/test_samplers.py", "contracts/test_samplers.py"],
    "samplers/sampler": ["contracts/test_samplers.py"],
    "samplers/stream": ["samplers/test_samplers.py"],
    "serving/about": ["serving/test_app.py"],
    "serving/corrected": ["serving/test_app.py"],
    "serving/decode_worker": ["serving/test_decoding.py"],
    "serving/items": ["serving/test_app.py"],
    "serving/logs": ["serving/test_metrics.py"],
    "serving/observing": ["serving/test_metrics.py"],
    "serving/problems": ["serving/test_app.py"],
    "serving/schemas": ["serving/test_app.py"],
    "serving/search": ["serving/test_app.py"],
    "serving/service": ["serving/test_app.py"],
    "training/slices": ["training/test_distributed.py"],
    "studies/reproduce/survey": ["studies/reproduce/test_rows.py"],
}


def own_test(module: str) -> Path:
    folder, _, name = module.rpartition("/")
    return TESTS / folder / f"test_{name}.py"


def public_names(module: str) -> set[str]:
    """Classes, functions and values that a module defines for others."""
    names = set()
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        names |= {node.name} if isinstance(node, ast.ClassDef | ast.FunctionDef) else set()
        names |= {each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def imports_in(text: str) -> set[str]:
    """Every module, and every name out of one, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def is_named(module: str, text: str) -> bool:
    """Whether a test imports a module, calls it or something of it by name, or has all of the package that shows it."""
    path = f"nearkin/{module}".replace("/", ".")
    package, _, stem = path.rpartition(".")
    imported = imports_in(text)
    shown = imports_in((MODULES[module].parent / "__init__.py").read_text(encoding="utf-8"))
    if path in imported or re.search(rf"{re.escape(path)}\b", text) or (package in imported and path in shown):
        return True
    nodes = list(ast.walk(ast.parse(text)))
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return bool(words & {stem, *public_names(module)})


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_test_of_its_name_or_one_elsewhere(module):
    own = own_test(module)
    if module not in ELSEWHERE:
        assert own.is_file(), f"write {own.relative_to(TESTS.parent)}"
        return
    assert not own.is_file(), f"{module} has a test of its own name: take it out of ELSEWHERE"
    for file in ELSEWHERE[module]:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert "def test_" in text
        assert is_named(module, text), f"{file} names neither {module} nor anything of it"


def test_no_module_that_is_gone_stays_in_the_list():
    assert set(ELSEWHERE) <= set(MODULES)
    assert all(ELSEWHERE.values())


def test_a_file_that_has_nothing_to_do_with_a_module_does_not_test_it():
    text = (TESTS / "test_suggest.py").read_text(encoding="utf-8")
    assert is_named("suggest", text)
    assert not [module for module in ELSEWHERE if is_named(module, text)]
