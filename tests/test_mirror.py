"""The tests stand as the modules do: every module has a test file of its name, or it says here which one tests it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "nearkin"
MODULES = {str(path.relative_to(SOURCE).with_suffix("")): path for path in sorted(SOURCE.rglob("[!_]*.py"))}
MODULES |= {str(path.relative_to(SOURCE).with_suffix("")): path for path in sorted(SOURCE.rglob("_[!_]*.py"))}

ELSEWHERE = {
    "data/benchmarks/_distortions": ["data/benchmarks/test_glyphs.py"],
    "data/folder_tree": ["data/test_folder.py"],
    "evaluation/scores/_score": ["evaluation/scores/test_catalogue.py"],
    "evaluation/scores/inter_class_distance": ["evaluation/scores/test_covering_radius.py"],
    "losses/_fused": ["losses/test__kernels.py"],
    "losses/_triton": ["losses/test__kernels.py"],
    "methods/plain": ["contracts/test_methods.py"],
    "report/page/_parts": ["report/test_page.py"],
    "report/page/charts": ["report/test_page.py"],
    "report/page/pictures": ["report/test_page.py"],
    "report/page/tables": ["report/test_page.py"],
    "report/plots/_maps": ["report/test_plots.py"],
    "report/plots/_runs": ["cli/test_plot.py"],
    "report/plots/_style": ["report/test_plots.py", "cli/test_plot.py"],
    "report/plots/certainty": ["report/test_plots.py"],
    "report/plots/covering": ["report/test_plots.py"],
    "report/plots/curves": ["report/test_plots.py"],
    "report/plots/map_test": ["report/test_plots.py"],
    "report/plots/map_train": ["report/test_plots.py"],
    "report/plots/neighbours": ["report/test_plots.py"],
    "report/plots/pairs": ["report/test_plots.py"],
    "report/plots/problems": ["report/test_plots.py"],
    "report/plots/similarity": ["report/test_plots.py"],
    "report/plots/uncertainty": ["report/test_plots.py"],
    "runs/data": ["runs/test_data_report.py", "runs/test_changed_data.py"],
    "runs/run": ["training/test_loop.py", "runs/test_protocol_runs.py"],
    "samplers/balanced": ["samplers/test_samplers.py", "contracts/test_samplers.py"],
    "samplers/random": ["samplers/test_samplers.py", "contracts/test_samplers.py"],
    "samplers/sampler": ["contracts/test_samplers.py"],
    "samplers/stream": ["samplers/test_samplers.py"],
    "studies/reproduce/survey": ["studies/reproduce/test_rows.py"],
}


def own_test(module: str) -> Path:
    folder, _, name = module.rpartition("/")
    return TESTS / folder / f"test_{name}.py"


def names_of(module: str) -> set[str]:
    """The module by its import path, and what it defines for others."""
    defined = set()
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in defined if not name.startswith("_")}


def is_named(module: str, text: str) -> bool:
    """Whether a test imports a module or something of it: by its path, out of its package, or by a public name."""
    package, _, name = f"nearkin/{module}".replace("/", ".").rpartition(".")
    imported = {
        f"{node.module}.{each.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    if f"{package}.{name}" in text or f"{package}.{name}" in imported:
        return True
    return any(re.search(rf"\b{re.escape(public)}\b", text) for public in names_of(module))


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_test_of_its_name_or_one_elsewhere(module):
    if module not in ELSEWHERE:
        assert own_test(module).is_file(), f"write {own_test(module).relative_to(TESTS.parent)}"
        return
    assert not own_test(module).is_file(), f"{module} has a test of its own name: take it out of ELSEWHERE"
    for file in ELSEWHERE[module]:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert "def test_" in text
        assert is_named(module, text), f"{file} names neither {module} nor anything of it"


def test_no_module_that_is_gone_stays_in_the_list():
    assert set(ELSEWHERE) <= set(MODULES)
    assert all(ELSEWHERE.values())
