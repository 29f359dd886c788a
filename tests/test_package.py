"""The shape of the package: what it exports, what imports what, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nearkin

SOURCE = Path(nearkin.__file__).parent

LADDER = (
    *("recipe", "data", "proxies", "losses samplers encoders", "evaluation", "training", "runs", "index", "report"),
    *("studies", "serving", "cli"),
)
"""Packages from the bottom up: each imports only from itself, from those before it and from the top-level modules."""
STEPS = {package: step for step, packages in enumerate(LADDER) for package in packages.split()}

OPTIONAL = {
    "torchvision",
    "timm",
    "faiss",
    "psycopg",
    "pgvector",
    "pymilvus",
    "transformers",
    "tensorboard",
    "wandb",
    "mlflow",
    "optuna",
    "pyarrow",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pillow_heif",
    "pytorch_metric_learning",
}


def modules():
    return sorted(SOURCE.rglob("*.py"))


def imports(tree: ast.AST, *, whole: bool):
    """Names of imported modules; ``whole`` also looks into functions, and at what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not whole and (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_for_types(node)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node, whole=whole)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def test_packages_form_a_ladder():
    """Imports in functions, and those for types alone, count too; ``nearkin/__init__`` exports lazily from all."""
    upward = set()
    for path in modules():
        here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name in imports(ast.parse(path.read_text()), whole=True):
            there = name.split(".")[1] if name.startswith("nearkin.") else ""
            if there in STEPS and there != here and STEPS[there] >= STEPS.get(here, 0):
                upward.add((here, there))
    upward -= {("__main__", "cli"), *(("__init__", package) for package in STEPS)}
    assert sorted(upward) == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_optional_packages_are_imported_where_they_are_used(path):
    at_top = {name.split(".")[0] for name in imports(ast.parse(path.read_text()), whole=False)}
    assert not at_top & OPTIONAL


def test_public_names_exist_and_stay_what_they_are():
    code = """
import nearkin
first = {name: getattr(nearkin, name) for name in nearkin.__all__}
import nearkin.cli, nearkin.studies.reproduce, nearkin.studies.tune, nearkin.runs.run
for name in nearkin.__all__:
    assert getattr(nearkin, name) is first[name] is not None, name
assert callable(nearkin.run)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no_such_name"):
        nearkin.no_such_name  # noqa: B018
    assert set(nearkin.__all__) <= set(dir(nearkin))


def test_import_costs_little_beside_torch():
    code = (
        "import time, torch; t = time.process_time(); import nearkin; print(time.process_time() - t);"
        "import sys; print('matplotlib' in sys.modules)"
    )
    seconds, drags = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert float(seconds) < 0.5
    assert drags == "False"
