"""The model card: what a model was trained on, its scores, and how to use it."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.encoders.architectures import backbones, default_weights
from nearkin.recipe import EncoderSection, Recipe
from nearkin.runs.folder import Environment, RunFolder
from nearkin.runs.scores import FinalOf, Scores


def model_card(
    folder: RunFolder, recipe: Recipe, scores: Scores, environment: Environment, *, exported: Sequence[str] = ()
) -> str:
    """The card of a run's model as Markdown; ``exported`` says how to use the file that it was exported to."""
    final = scores.final_of is not None or recipe.protocol.name == "everything"
    data, encoder, conditions = environment.data, recipe.encoder, scores.conditions
    lost = len(data.unreadable)
    dim = encoder.dim or "all the backbone's"
    written = f"nearkin {environment.packages.get('nearkin', '')} on {environment.started[:10]}"
    distance = "cosine similarity" if encoder.normalisation == "l2" else "Euclidean distance"
    files = f"in `{folder.recipe_file.name}`, versions in `{folder.environment_file.name}`"
    lines = [
        f"# {conditions.data}: {conditions.objective}" + (", trained on every class" if final else ""),
        "",
        f"An encoder that puts images of the same class near each other: {dim} numbers per image, to be compared "
        f"by {distance}. Written by {written}.",
        "",
        "## Data",
        "",
        f"`{conditions.data}`: {data.training_images:,} images of {data.training_classes:,} classes"
        + (" trained, every class." if final else f" trained; {data.test_images:,} images were kept for testing.")
        + (f" {lost} image{'s' * (lost > 1)} could not be read." if lost else ""),
        "",
        "## Score",
        "",
        *_score(scores.final_of or FinalOf(str(folder.path), _note(scores), scores)),
        *(["", scores.on_new_images] if scores.on_new_images else []),
        "",
        "## Recipe",
        "",
        f"- backbone `{encoder.backbone}`, weights at the start: {environment.weights or 'random numbers'}",
        f"- loss `{recipe.objective.name}`, method `{recipe.method.name}`, {scores.length} of a schedule "
        f"of {recipe.training.epochs}, seed {conditions.seed}, {conditions.hardware}",
        f"- everything else {'at the end of this page' if exported else files}",
        "",
        "## Use",
        "",
        *(exported or _use(folder)),
        "",
        "It cannot tell classes apart that differ less than photos of the same class do. Every image has a nearest "
        "one, even where none is of its class: look at the similarity.",
        "",
        "## Licence",
        "",
        "Whether these weights may be passed on depends on the terms of the images above and of the weights at the "
        "start; nearkin's own licence (Apache-2.0) covers the code alone." + _licence(encoder),
    ]
    if exported:
        lines += ["", "## Whole recipe", "", "```yaml", recipe.to_yaml().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _use(folder: RunFolder) -> list[str]:
    return [
        "```",
        f"nearkin embed {folder.path} FOLDER -o embeddings.npz",
        f"nearkin evaluate {folder.path} --data FOLDER     # a score on classes that are not among those above",
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


def _licence(encoder: EncoderSection) -> str:
    licence = getattr(backbones().get(encoder.backbone), "licence", None)
    if licence is None or encoder.weights != default_weights(encoder.backbone):
        return ""
    return f" Those of {encoder.backbone} ({encoder.weights}) are under {licence}."


def _score(final_of: FinalOf) -> list[str]:
    scores, conditions = final_of.scores, final_of.scores.conditions
    if not scores.test:
        return [final_of.note]
    before, after = scores.untrained or {}, scores.test
    weights = f"{conditions.weights}, " if conditions.weights else ""
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
        f"{conditions.protocol.capitalize()} protocol, {conditions.selection}, {weights}seed {conditions.seed}.",
        *(["", str(scores.collapse)] if scores.collapse else []),
    ]
