"""Every figure in ``README.md``, from the files in ``results/`` and ``benchmarks/results/``: ``make readme``.

What stands between ``<!-- figures: NAME -->`` and ``<!-- end -->`` is written here and nowhere else. A row of the table
of results is one line of ``RESULTS``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from nearkin.evaluation.statistics import difference_by_seed

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)


@dataclass(frozen=True)
class Result:
    """Runs in a file of ``results/`` that agree with ``where``, and the key of a run that holds its scores."""

    what: str
    chosen: str
    file: str | tuple[str, ...]
    where: dict[str, Any]
    score: str = "test"
    base: dict[str, Any] = field(default_factory=dict)
    """With it the difference of R@1 from these runs is told, with its 95 % interval."""
    by: str = "seed"
    """What runs of both are paired by."""


TEST, VALIDATION, LAST = "test classes", "validation classes", "nothing: the last"
SIXTY = "cub/2026-11-17-sixty-epochs.json"
FOLDS = ("cub/2026-11-16-reality-check.json", "cub/2026-11-17-reality-check.json")
ISA, ISA_BASE = ({"group": "ISA, halved every 10", "row": row} for row in ("proxy_isa", "proxy_anchor"))
RESULTS = (
    Result("**CUB-200-2011**, ResNet-50, `cub/best`, 2,048-d, crops of 256 px", TEST, "cub/2026-11-17-best-wide.json", {"row": "dim-2048"}),
    Result("the same runs, tested with mirror images at 352 px", TEST, "cub/2026-11-17-best-wide-test-time.json", {"flip": True, "eval_size": 352}, "scores"),
    Result("three seeds, trained again, side by side, tested likewise", TEST, "cub/2026-11-17-best-products.json", {"of": "proxy_anchor, seeds 0, 1 and 2", "flip": True}, "scores"),
    Result("`cub/best`, 2,048-d, at 224 px", TEST, "cub/2026-11-17-best-wide.json", {"row": "dim-2048-image_size-224"}),
    Result("Proxy-Anchor, 512-d, 224 px", TEST, "cub/2026-11-15-conventional.json", {"group": "proxies", "row": "proxy_anchor"}),
    Result("the same: MPA with variational proxies", TEST, "cub/2026-11-15-conventional.json", {"row": "variational_mpa_2"}, base={"group": "proxies", "row": "proxy_anchor"}),
    Result("Proxy-Anchor, 224 px, 10 epochs", VALIDATION, "cub/2026-11-15-compare-batch120.json", {"row": "proxy_anchor"}),
    Result("Proxy-Anchor, reality check, four models of 128-d together", VALIDATION, "cub/2026-11-15-mlrc.json", {"row": "proxy_anchor"}, "concatenated"),
    Result("the same check, mean of four folds: C2", VALIDATION, "cub/2026-11-16-reality-check.json", {"row": "c2"}),
    Result("the same: C2 with CCP", VALIDATION, "cub/2026-11-16-reality-check.json", {"row": "c2_ccp"}, base={"row": "c2"}, by="group"),
    Result("the same check, eight models of the four folds: C2", VALIDATION, FOLDS, {"row": "c2"}),
    Result("the same: C2 with CCP, pull 0.1", VALIDATION, FOLDS, {"row": "c2_ccp_pull_1e-1"}, base={"row": "c2"}, by="group"),
    Result("four of these, with a seed each, together: C2", VALIDATION, "cub/2026-11-17-mlrc.json", {"row": "c2"}, "concatenated"),
    Result("the same: C2 with CCP, pull 0.1", VALIDATION, "cub/2026-11-17-mlrc.json", {"row": "c2_ccp_pull_1e-1"}, "concatenated"),
    Result("**CUB, 60 epochs as ISA's authors train, rate halved every 10**: Proxy-Anchor", TEST, SIXTY, ISA_BASE),
    Result("the same: Proxy-ISA", TEST, SIXTY, ISA),
    Result("the same runs: Proxy-Anchor", LAST, SIXTY, ISA_BASE, "last"),
    Result("the same runs: Proxy-ISA", LAST, SIXTY, ISA, "last", base=ISA_BASE),
    Result("**CUB, trained as the MPA paper has it**: Proxy-Anchor", TEST, "cub/2026-11-16-mpa.json", {"row": "proxy_anchor"}),
    Result("the same: MPA-DW", TEST, "cub/2026-11-16-mpa.json", {"row": "mpa_dw"}, base={"row": "proxy_anchor"}),
    Result("60 epochs of that: Proxy-Anchor", LAST, SIXTY, {"group": "MPA", "row": "proxy_anchor"}, "last"),
    Result("the same: MPA", LAST, SIXTY, {"group": "MPA", "row": "mpa"}, "last", base={"group": "MPA", "row": "proxy_anchor"}),
    Result("**CUB, a tenth of the images**: Proxy-Anchor", TEST, "cub/2026-11-16-vcpa-tenth.json", {"group": "batch 180", "row": "proxy_anchor"}),
    Result("the same: VCPA", TEST, "cub/2026-11-16-vcpa-tenth.json", {"group": "batch 180", "row": "vcpa_003"}, base={"group": "batch 180", "row": "proxy_anchor"}),
    Result("**Glyphs**, small network from scratch, `make demo`", VALIDATION, "glyphs/2026-11-16-demo.json", {"row": "demo"}),
)  # fmt: skip


def read(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def runs(files: str | tuple[str, ...], where: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs in files of ``results/`` that have these values; each says which file it is of."""
    files = (files,) if isinstance(files, str) else files
    every = [{**run, "file": file} for file in files for run in read(f"results/{file}")]
    found = [run for run in every if all(run.get(key) == value for key, value in where.items())]
    if not found:
        raise SystemExit(f"results/{', results/'.join(files)}: no run with {where}")
    return found


def spread(values: list[float]) -> str:
    """In percent, with the standard deviation where there are several.

    >>> spread([0.70, 0.72]), spread([0.7])
    ('71.0\xa0±\xa01.4', '70.0')
    """
    shown = f"{100 * mean(values):.1f}"
    return shown if len(values) == 1 else f"{shown}\xa0±\xa0{100 * stdev(values):.1f}"


def value(score: Any) -> float:
    return float(score["mean"] if isinstance(score, dict) else score)


def results() -> str:
    """The table of results: what, how the epoch was chosen, how many runs, where and when, R@1 and MAP@R."""
    lines = ["| | epoch chosen by | runs | hardware, date | R@1 | MAP@R |", "|---|---|---|---|---|---|"]
    for row in RESULTS:
        chosen = runs(row.file, row.where)
        recall = spread([value(run[row.score]["R@1"]) for run in chosen])
        precision = spread([value(run[row.score]["MAP@R"]) for run in chosen])
        if row.base:
            ours, theirs = (
                {(run["file"], run[row.by]): run[row.score]["R@1"] for run in side}
                for side in (chosen, runs(row.file, row.base))
            )
            apart = difference_by_seed(ours, theirs)
            assert apart is not None
            assert apart.interval is not None
            low, high = apart.interval
            difference = f" (**{100 * apart.value:+.1f}**, {100 * low:+.1f} to {100 * high:+.1f})"
            recall += difference.replace("-", "−")
        # Scores of the same runs at test time do not repeat what those ran on.
        hardware = chosen[0].get("hardware", "NVIDIA H200").replace("NVIDIA ", "one ")
        hardware = re.sub(r"^CPU, .*?(\d+) cores.*", r"\1 CPU cores", hardware)
        when = max(re.findall(r"\d{4}-\d\d-\d\d", str(row.file)))
        lines.append(f"| {row.what} | {row.chosen} | {len(chosen)} | {hardware}, {when} | {recall} | {precision} |")
    return "\n".join(lines)


def demo() -> str:
    """What the picture's run scored."""
    (run,) = runs("glyphs/2026-11-16-demo.json", {"row": "demo"})
    before, after = (100 * run[part]["R@1"] for part in ("untrained", "test"))
    return (
        "*`make demo`, characters that training has never seen: the nearest neighbour of an image is of the same kind for\n"
        f"{before:.0f} % of them before training and for {after:.0f} % after it (green: same kind, red: another).*"
    )


def milliseconds(value: float) -> str:
    """
    >>> milliseconds(2.96), milliseconds(24.4)
    ('3.0 ms', '24 ms')
    """
    return f"{value:.{1 if value < 10 else 0}f} ms"


def speed() -> str:
    """Times beside those of a peer, from one run each."""
    losses, on_gpu, search, scores, scores_on_gpu, embed, gallery = (
        "2026-11-18-losses-cpu-shorter.json",
        "2026-11-18-losses-h200-shorter.json",
        "2026-11-18-search-cpu-shorter.json",
        "2026-11-18-evaluation-cpu-shorter.json",
        "2026-11-18-evaluation-h200-shorter.json",
        "2026-11-16-embed-cpu.json",
        "2026-11-17-own-photos-to-gallery.txt",
    )

    def loss(file: str, name: str, classes: int) -> list[str]:
        runs = read(f"benchmarks/results/{file}")
        run = next(run for run in runs if run["loss"] == name and run["size"].endswith(f"C={classes}"))
        return [milliseconds(run[side]["median_ms"]) for side in ("ours", "theirs")]

    def scored(file: str, case: str) -> list[str]:
        run = next(run for run in read(f"benchmarks/results/{file}") if run["case"] == case)
        return [f"{wall:.2g} s" for wall, _ in run["seconds"].values()]

    anchor, anchor_on_gpu = loss(losses, "ProxyAnchor", 11318), loss(on_gpu, "ProxyAnchor", 11318)
    triple_on_gpu = loss(on_gpu, "SoftTriple+Reg K=10", 100)
    small, large, (small_on_gpu,) = scored(scores, "sop"), scored(scores, "large-classes"), scored(scores_on_gpu, "sop")
    one, many = (
        next(
            [milliseconds(run["ms"][side]) for side in ("nearkin", "faiss")]
            for run in read(f"benchmarks/results/{search}")["results"]
            if run["vectors"] == "around kinds" and run["queries"] == count
        )
        for count in (1, 64)
    )
    sides = {
        each["side"]: median(turn["cpu_ms_per_image"] for turn in each["rounds"])
        for each in read(f"benchmarks/results/{embed}")
    }
    told = (ROOT / "benchmarks" / "results" / gallery).read_text(encoding="utf-8")
    train, index, serve = re.findall(r"^ {4}\w.*? (\d+ s)$", told, flags=re.M)[:3]
    rows = [
        ("1,000 photos to the gallery: train, index, serve", "2 CPU cores", gallery, f"{train}, {index}, {serve}", "–"),
        ("Proxy-Anchor forward and backward, 11,318 classes", "2 CPU cores", losses, anchor[0], f"pytorch-metric-learning {anchor[1]}"),
        ("the same", "one H200", on_gpu, anchor_on_gpu[0], f"pytorch-metric-learning {anchor_on_gpu[1]}"),
        ("SoftTriple with its regulariser, 100 classes", "one H200", on_gpu, triple_on_gpu[0], f"pytorch-metric-learning, without it, {triple_on_gpu[1]}"),
        ("one exact search among 100,000 vectors of 512-d", "2 CPU cores", search, one[0], f"faiss, exact {one[1]}"),
        ("64 of them together", "2 CPU cores", search, many[0], f"faiss, exact {many[1]}"),
        ("eight scores of 60,502 vectors of 512-d, 11,316 classes", "2 CPU cores", scores, small[0], f"faiss, twelve neighbours only, {small[1]}"),
        ("the same of 60,000 vectors, ten classes", "2 CPU cores", scores, large[0], f"faiss, twelve neighbours only, {large[1]}"),
        ("the same of 60,502 vectors, 11,316 classes", "one H200", scores_on_gpu, small_on_gpu, "–"),
        ("embedding a photo (EfficientNet-lite0) without its mirror image, processor time", "1 CPU core", embed, f"{sides['nearkin']:.0f} ms", f"plain torch {sides['plain torch']:.0f} ms"),
    ]  # fmt: skip
    lines = ["| | hardware, date | nearkin | peer, same run |", "|---|---|---|---|"]
    for what, hardware, file, ours, theirs in rows:
        lines.append(f"| {what} | {hardware}, {file[:10]} | {ours} | {theirs} |")
    return "\n".join(lines)


BLOCKS = {"demo": demo, "results": results, "speed": speed}


def written(text: str) -> str:
    """A page with its figures as the files have them."""
    return BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]()}\n{match[4]}", text)


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    README.write_text(written(before), encoding="utf-8")
    print("README.md has the figures of the files" if written(before) == before else "README.md was brought up to date")
