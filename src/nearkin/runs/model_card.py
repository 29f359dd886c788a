"""The page that goes with a final model: what it was trained on, what is known of it, how to use it."""

from __future__ import annotations

from nearkin.recipe import Recipe
from nearkin.runs.environment import Environment
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import FinalOf, Scores


def model_card(folder: RunFolder, recipe: Recipe, scores: Scores, environment: Environment) -> str:
    """The card of a final model as Markdown; ``scores`` are those that ``train_final`` leaves."""
    data, encoder, held = environment.data, recipe.encoder, scores.conditions
    lost = len(data.unreadable)
    dim = encoder.dim or "all the backbone's"
    written = f"nearkin {environment.packages.get('nearkin', '')} on {environment.started[:10]}"
    distance = "cosine similarity" if encoder.normalisation == "l2" else "Euclidean distance"
    lines = [
        f"# {held.data}: {held.objective}, trained on every kind",
        "",
        f"An encoder that puts images of the same kind near each other: {dim} numbers per image, to be compared "
        f"by {distance}. Written by {written}.",
        "",
        "## Data",
        "",
        f"`{held.data}`: {data.training_images:,} images of {data.training_classes:,} kinds, all of which "
        f"trained." + (f" {lost} image{'s' * (lost > 1)} could not be read." if lost else ""),
        "",
        "## Score",
        "",
        *([] if scores.final_of is None else _score(scores.final_of)),
        "",
        "## Recipe",
        "",
        f"- backbone `{encoder.backbone}`, weights at the start: {environment.weights or 'random numbers'}",
        f"- loss `{recipe.objective.name}`, method `{recipe.method.name}`, {scores.epochs:g} epochs of a schedule "
        f"of {recipe.training.epochs}, seed {held.seed}, {held.hardware}",
        f"- everything else in `{folder.recipe_file.name}`, versions in `{folder.environment_file.name}`",
        "",
        "## Use",
        "",
        "```",
        f"nearkin embed {folder.path} FOLDER -o embeddings.npz",
        f"nearkin evaluate {folder.path} --data FOLDER     # a score on kinds that are not among those above",
        "```",
        "",
        "```python",
        "from nearkin import load_run",
        f"encoder = load_run({str(folder.path)!r}).encoder  # uint8 [B, H, W, 3] → [B, dim]",
        "```",
        "",
        "It cannot tell kinds apart that differ less than photos of the same kind do, and every image has a nearest "
        "one, also where none is of its kind: look at the similarity.",
        "",
        "## Licence",
        "",
        "Whether these weights may be passed on depends on the terms of the images above and of the weights at the "
        "start; nearkin's own licence (Apache-2.0) covers the code alone.",
    ]
    return "\n".join(lines) + "\n"


def _score(final_of: FinalOf) -> list[str]:
    """The honest score, and whose it is."""
    scores, held = final_of.scores, final_of.scores.conditions
    if not scores.test:
        return [final_of.note]
    before, after = scores.untrained or {}, scores.test
    of_weights = f"{held.weights}, " if held.weights else ""
    names = [name for name in after if "@" in name or name in ("NMI", "F1")]
    return [
        final_of.note,
        "",
        f"| score (%) | {_baseline(scores)} | `{final_of.run}` |",
        "|---|---|---|",
        *(
            f"| {name} | {f'{100 * before[name]:.1f}' if name in before else '–'} | {100 * after[name]:.1f} |"
            for name in names
        ),
        "",
        f"{held.protocol.capitalize()} protocol, {held.selection}, {of_weights}seed {held.seed}.",
    ]


def _baseline(scores: Scores) -> str:
    return "untrained backbone" if scores.baseline == "backbone" else "untrained, random head"
