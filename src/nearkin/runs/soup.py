"""A soup: the mean of the weights of several runs, written as a run that all commands take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nearkin.encoders.mean_weights import MeanWeights
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.protocol import as_tested
from nearkin.notices import notice
from nearkin.recipe.identity import fingerprint
from nearkin.runs.data import SCORED, Progress, RunData, open_run_data
from nearkin.runs.environment import Environment
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.scores import Conditions, Scores, Soup, SoupPart
from nearkin.runs.soup_parts import Part, different_starts, open_parts
from nearkin.runs.trained import TrainedRun, load_run
from nearkin.training.batch_statistics import has_running_statistics, renew_batch_statistics
from nearkin.training.build import scored_transform_of, training_transform_of
from nearkin.training.checkpoint import write_encoder
from nearkin.training.device import describe_hardware, float32_products

Watch = Callable[[str, int, int], None]
"""Told what is being done, how many images are done, and how many there are."""


def soup(
    runs: Sequence[str | Path],
    output: str | Path,
    *,
    which: str = "best",
    device: str | None = None,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Soup:
    """Write the mean of the weights of several runs as a run folder, and score it beside each of them.

    A model soup (Wortsman and others, ICML 2022): one encoder at the cost of one. It is of use where the runs began
    from the same weights, the head's random numbers included (the same ``training.seed``); where they did not, a notice
    says so. Backbone, pooling and head are averaged, in float64. Proxies are not, so that the runs may have different
    losses and methods, but their encoders must be of one architecture and their images the same. Where batch-norm was
    not frozen, its statistics are computed anew over the training images of the first run, as those of a mean of
    weights are not the mean of theirs.

    The folder has the recipe and the split of the first run, whose test classes are scored, and no checkpoints, curves
    or proxies; ``soup.json``, which is returned, says what it is of. All are embedded as the first run was scored.

    Args:
        runs: two finished runs or more, each with the same weight.
        output: a new folder.
        which: ``best`` or ``last`` checkpoint of each run.
        device: where to compute; default: the best there is.
        data_root: folder that holds the benchmarks.
        progress: told how far the decoding of images has come.
        watch: told what is being done with how many images, and how many are done.

    Raises:
        RecipeError: for runs that do not go together, or a folder that holds a run.
        DataError: for a run without weights, different images, or test classes that another run was trained on.
    """
    folder = RunFolder(Path(output).expanduser())
    _check_free(folder)
    parts = open_parts(runs)
    first, environment = parts[0], parts[0].folder.environment()
    recipe = first.recipe if data_root is None else first.recipe.but({"data.root": str(data_root)})
    apart = different_starts(parts)
    for sentence in [*apart, *_seen_otherwise(parts)]:
        notice(sentence)
    with sole_writer_of(folder.path):
        _check_free(folder)
        # All weights before any image: what is missing or damaged is found at once.
        mean, run = MeanWeights(), replace(load_run(first.folder.path, which=which, device=device), recipe=recipe)
        for part in parts:
            mean.add(load_run(part.folder.path, which=which, device="cpu").encoder.state_dict())
        live = has_running_statistics(run.encoder) and not all(p.recipe.encoder.freeze_batch_norm for p in parts)
        data = None
        if first.tested.any() or live:
            data = open_run_data(first.folder, recipe, progress=progress, scored=SCORED[1:])
        tests = []
        for part in parts:
            encoder = load_run(part.folder.path, which=which, device=device).encoder
            # Seen as the first run was scored, whatever the run's own crops, mirror images and precision.
            tests.append(_scored(replace(run, encoder=encoder), data, part.path, watch))
        run.encoder.load_state_dict(mean.weights())
        batch_norm = _settle_batch_norm(run, data, live=live, watch=watch)
        test = _scored(run, data, "the soup", watch, final=True)
        made = Soup(which, [*map(_record, parts, tests)], apart, batch_norm, test)
        _write(folder, made, run, first, environment, _scores(made, parts, run))
    return made


def _check_free(folder: RunFolder) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise RecipeError(f"{folder.path} is a file: give a folder for the soup with -o")
    if folder.is_begun:
        what = "a soup" if folder.is_soup else "a run"
        raise RecipeError(f"{folder.path} holds {what} already: give another folder with -o")


def _seen_otherwise(parts: Sequence[Part]) -> list[str]:
    """A sentence for each run whose own score is of other crops or embeddings, so that it is not the one shown here."""
    first, *others = ((scored_transform_of(part.recipe), part.recipe.protocol.flip) for part in parts)
    return [
        f"{part.path} was scored with other crops or mirror images than {parts[0].path}: here all are seen as that was"
        for part, seen in zip(parts[1:], others, strict=True)
        if seen != first
    ]


def _scored(
    run: TrainedRun, data: RunData | None, what: str, watch: Watch | None, *, final: bool = False
) -> dict[str, float] | None:
    """On the first run's test classes; None where it has none."""
    if data is None or data.protocol.test is None:
        return None
    images = data.images.images
    return data.protocol.score(
        data.protocol.test,
        lambda rows: run.embed(images, rows, progress=_told(watch, f"scoring {what}", len(rows))),
        distance=run.encoder.distance,
        final=final,
    )


def _settle_batch_norm(run: TrainedRun, data: RunData | None, *, live: bool, watch: Watch | None) -> str:
    """Running statistics that are those of the weights; what was done, in words."""
    if not has_running_statistics(run.encoder):
        return "none in this network"
    if not live or data is None:
        return "frozen, so its statistics stay"
    rows, recipe = data.protocol.train_rows, run.recipe
    if not len(rows):
        raise DataError(
            f"the training images of {run.recipe.data.source} are not there, over which batch-norm's statistics have "
            f"to be computed: put them back"
        )
    with float32_products(recipe.training.precision):
        renew_batch_statistics(
            run.encoder,
            data.images.images,
            training_transform_of(recipe.data, run.encoder),
            rows,
            batch_size=recipe.training.batch_size,
            workers=recipe.data.workers,
            dtype=run.dtype,
            progress=_told(watch, "batch-norm's statistics", len(rows)),
        )
    return f"statistics computed anew over {len(rows):,} training images"


def _told(watch: Watch | None, what: str, total: int) -> Callable[[int], None] | None:
    if watch is None:
        return None
    watch(what, 0, total)
    return lambda done: watch(what, done, total)


def _record(part: Part, test: dict[str, float] | None) -> SoupPart:
    recipe = part.recipe
    family = fingerprint(recipe, besides=["training.seed", "protocol.validation_seed"])
    return SoupPart(part.path, recipe.objective.name, recipe.method.name, recipe.training.seed, family, test)


def _scores(soup: Soup, parts: Sequence[Part], run: TrainedRun) -> Scores:
    """What tables show of it: under the conditions of the first run, but for the loss, the weights and their choice."""
    first, held = parts[0].scores, [part.scores.conditions for part in parts]
    rules = ["last epoch"] if soup.checkpoint == "last" else [each.selection.partition(";")[0] for each in held]
    trained = [each.training_conditions for each in held if each.training_conditions]
    return Scores(
        Conditions(
            data=held[0].data,
            objective=soup.title,
            protocol=held[0].protocol,
            selection=as_tested(f"each run at its {' or '.join(dict.fromkeys(rules))}", run.recipe.protocol),
            test_classes=held[0].test_classes,
            training_conditions=" or ".join(dict.fromkeys(trained)) or None,
            weights=soup.weights,
            seed=held[0].seed,
            hardware=describe_hardware(run.device),
            recipe=held[0].recipe,
        ),
        # Of another start the untrained scores would be others.
        untrained=None if soup.different_starts else first.untrained,
        baseline=None if soup.different_starts else first.baseline,
        test=soup.test,
        soup_of=[part.run for part in soup.parts],
    )


def _write(
    folder: RunFolder, soup: Soup, run: TrainedRun, first: Part, environment: Environment, scores: Scores
) -> None:
    """The recipe comes last: without it nothing takes the folder for a run."""
    try:
        folder.write_split(first.split)
        write_encoder(run.encoder, run.recipe, folder)
        folder.write_environment(environment.again(run.device, run.encoder))
        folder.write_soup(soup)
        folder.write_scores(scores)
        folder.write_recipe(run.recipe)
    except BaseException:
        folder.clear()
        raise
