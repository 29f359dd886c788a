"""Mutation testing: change one operator, number or condition of a module and see whether its tests notice.

``python -m tests.mutants losses/triplet`` tries a sample of a module's mutants, ``losses`` of a whole package's.
mutmut 3.8 does not run under pytest 9, and a process per mutant (cosmic-ray) imports torch each time: here that is
imported once, and every mutant is a fork with a copy of the package, so that the working tree is never changed.

A mutant meets the tests of its module first; one that survives them meets those of the whole package and its contracts.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import os
import random
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SOURCE = ROOT / "src" / "nearkin"
MODULES = {
    str(path.relative_to(SOURCE).with_suffix("")): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.stem not in ("__init__", "__main__")
}
WARM = (
    "torch",
    "pytest",
    "hypothesis",
    "numpy",
    "PIL.Image",
    "rich",
    "typer",
    "yaml",
    "sqlite3",
    "faiss",
    "scipy.stats",
)
"""What most tests import, which every fork then has."""
CONTRACTS = {
    "losses": ["contracts/test_losses.py", "contracts/test_losses_in_use.py", "contracts/test_golden_curves.py"],
    "proxies": ["losses", "methods", "contracts/test_golden_curves.py"],
}
SECONDS = 300
"""Processor time in which tests have to end: a condition turned round may loop for ever."""
KERNELS = ("encoders/_offset_relu_kernel", "data/_resampling_kernel")  # run on a GPU alone

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
PAIRS = (
    ("min", "max"), ("any", "all"), ("amin", "amax"), ("argmin", "argmax"), ("clamp_min", "clamp_max"), ("sum", "mean"),
    ("floor", "ceil"), ("zeros", "ones"), ("minimum", "maximum"), ("exp", "log"),
    ("zeros_like", "ones_like"), ("sin", "cos"),
)  # fmt: skip
CALLS = dict(PAIRS) | {second: first for first, second in PAIRS}


@dataclass(frozen=True)
class Mutant:
    """One change of a module: bytes ``start`` to ``end`` give way to ``new``."""

    module: str
    number: int
    line: int
    start: int
    end: int
    old: str
    new: str

    def source(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} #{self.number}: {' '.join(self.old.split())} -> {self.new}"


def changes(node):
    """Every change of a node alone, as another node."""
    changed = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed.ops = [OPERATORS[type(node.ops[0])]()]
        yield changed
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
        changed.op = OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield changed.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 0.5)
    elif isinstance(node, ast.Call):
        name = "attr" if isinstance(node.func, ast.Attribute) else "id"
        if (other := CALLS.get(getattr(node.func, name, ""))) is not None:
            setattr(changed.func, name, other)
            yield changed
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Break):
        yield ast.Continue()


def visited(node):
    """The nodes below one that count: no annotations, decorators, texts, and nothing of what an error says."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        if isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "__all__" for each in node.targets):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if isinstance(node, ast.If | ast.IfExp | ast.While | ast.comprehension) and name in ("test", "ifs"):
                    yield child, True
                else:
                    yield child, False
                yield from visited(child)


def mutants(module: str, text: bytes) -> list[Mutant]:
    """All mutants of a module, in order.

    >>> [str(each) for each in mutants("m", b"def f(a):\\n    return a if a > 1 else -2\\n")]
    ['m.py:2 #0: a > 1 -> not a > 1', 'm.py:2 #1: a > 1 -> a >= 1', 'm.py:2 #2: 1 -> 2', 'm.py:2 #3: -2 -> 2', ...]
    """
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node, is_condition in visited(ast.parse(text)):
        others = list(changes(node))
        # An operator's other may be the condition's opposite already.
        opposite = isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if is_condition and not opposite and not isinstance(node, ast.UnaryOp):
            others.insert(0, ast.UnaryOp(ast.Not(), node))
        for other in others:
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            new = ast.unparse(other)
            # What binds less tightly than its surroundings would be read as something else.
            if isinstance(other, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp) and not is_condition:
                new = f"({new})"
            found.append(Mutant(module, len(found), node.lineno, start, end, text[start:end].decode(), new))
    return found


class Trial:
    """A copy of the package in which one module at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(SOURCE, folder / "src" / "nearkin")
        shutil.copytree(ROOT / "recipes", folder / "recipes")
        os.environ["PYTHONPATH"] = str(folder / "src")
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        sys.path.insert(0, str(folder / "src"))
        for name in WARM:
            with suppress(ImportError):
                importlib.import_module(name)
        assert not any(name.partition(".")[0] == "nearkin" for name in sys.modules), "forks would have the old module"

    def passes(self, module: str, text: bytes, tests: list[Path]) -> bool:
        """Whether all tests pass when a module's text is ``text``; one that takes for ever does not."""
        path = self.folder / "src" / "nearkin" / f"{module}.py"
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()
        path.write_bytes(text)
        try:
            # Its examples come last: a module that pytest is the first to import is another than the one the tests see.
            return self._fork(["-x", *map(str, tests), str(path)])
        finally:
            shutil.copyfile(MODULES[module], path)

    def _fork(self, arguments: list[str]) -> bool:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        import resource  # where there is no fork, there is none of this either

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        sink = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.dont_write_bytecode = True
        import pytest

        options = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "--hypothesis-seed=0"]
        os._exit(int(pytest.main([*options, "-p", "no:cacheprovider", *arguments])) & 0x7F)


def files_for(module: str) -> tuple[list[Path], list[Path]]:
    """The file of the module's own name, where there is one, and all that test its package."""
    folder, _, name = module.rpartition("/")
    package = module.partition("/")[0]
    wider = [TESTS / each for each in [package, *CONTRACTS.get(package, ())] if (TESTS / each).exists()]
    own = TESTS / folder / f"test_{name}.py"
    return [own] if own.is_file() else wider, wider


def try_module(
    trial: Trial, module: str, chosen: list[Mutant], *, wider: bool, given: list[Path] | None
) -> list[Mutant]:
    """Those of a module's mutants that survive, said as they are found."""
    text = MODULES[module].read_bytes()
    first, package = files_for(module)
    first = given or first
    survivors, unnoticed = [], 0
    for mutant in chosen:
        changed = mutant.source(text)
        compile(changed, module, "exec")  # one that were no Python would count as killed
        if not trial.passes(module, changed, first):
            continue
        unnoticed += 1
        if not wider or trial.passes(module, changed, package):
            survivors.append(mutant)
            print(f"  survived: {mutant}", flush=True)
    # A mutant that is not noticed shows that the tests pass here; where there is none, the module itself has to.
    if not unnoticed and not trial.passes(module, text, first):
        sys.exit(f"{module}: its tests fail without any change\n{(trial.folder / 'log').read_text()[-2000:]}")
    print(f"{module}: {len(chosen) - len(survivors)} of {len(chosen)} killed", flush=True)
    return survivors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="+", help="losses/triplet, or losses for a whole package")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each module or package named, 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="these mutants of one module, numbered as printed")
    parser.add_argument("--tests", type=Path, nargs="*", help="these instead of the module's own")
    parser.add_argument("--narrow", action="store_true", help="the tests of the module alone, not of its package")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        for name in (each.removesuffix(".py").strip("/") for each in options.modules):
            modules = [
                each for each in MODULES if each not in KERNELS and name in {each, *map(str, Path(each).parents)}
            ]
            every = [mutant for each in modules for mutant in mutants(each, MODULES[each].read_bytes())]
            if not every:
                sys.exit(f"{name}: no module or package of src/nearkin, or one without anything to change")
            if options.only:
                chosen = [each for each in every if each.number in options.only]
            else:
                chosen = random.Random(options.seed).sample(every, min(options.sample or len(every), len(every)))
            survivors = [
                survivor
                for module in modules
                if (of_it := sorted((each for each in chosen if each.module == module), key=lambda each: each.number))
                for survivor in try_module(trial, module, of_it, wider=not options.narrow, given=options.tests)
            ]
            share = 100 * (1 - len(survivors) / len(chosen))
            killed = f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed ({share:.0f} %)"
            print(f"{name}: {killed}, of {len(every)} possible, seed {options.seed}", flush=True)


if __name__ == "__main__":
    main()
