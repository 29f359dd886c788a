"""Commands that train many runs: compare, mlrc, reproduce, tune."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from nearkin.cli import options
from nearkin.cli._app import COMPARE, announcer, app, label_line, print_table, progress_console, say
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.studies.study import Row, Study
    from nearkin.studies.tune import Search


@app.command(rich_help_panel=COMPARE)
def compare(
    changes: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Changes for every row, as training.epochs=5.")
    ] = None,
    data: options.Data = None,
    rows: Annotated[
        str | None,
        Option(
            help="Rows to train, separated by commas: names that --list shows, or any loss, method or LOSS+METHOD. "
            "Default: all that --list shows."
        ),
    ] = None,
    rows_from: Annotated[str | None, Option(help="File of rows and recipe, or nearkin's: glyphs-ccp, cub, …")] = None,
    recipe: Annotated[str | None, Option(help="Recipe of all rows. Default: the file's, or one for the data.")] = None,
    vary: Annotated[str | None, Option(help="Rows are values of one key: key=a,b,c.")] = None,
    ablate: Annotated[
        list[str] | None, Option(help="A row with this change, key=value; several joined by &. Repeat for more rows.")
    ] = None,
    against: Annotated[str | None, Option(help="The row that others are compared with. Default: the first.")] = None,
    seeds: Annotated[int, Option(min=1, help="Runs of each row, with different seeds.")] = 3,
    jobs: options.Jobs = 1,
    epochs: options.Epochs = None,
    output: options.RunsFolder = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace runs with another recipe.")] = False,
    class_folders: options.ClassFolders = None,
    listing: options.ListRows = False,
    format_: options.Format = "table",
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Train several losses and methods with the same budget and compare their scores.

    Each is a row of the table. Data, encoder, batch and epochs are the same for all rows.

    [bold]nearkin compare --data glyphs[/bold]  all rows, three seeds, on the benchmark that comes with nearkin

    [bold]nearkin compare --data PHOTOS --rows proxy_anchor,vcpa --seeds 1[/bold]  two rows on your photos

    [bold]nearkin compare --data PHOTOS --rows triplet,triplet+ccp[/bold]  a loss, and the loss with a method

    [bold]nearkin compare --recipe glyphs/demo --vary objective.alpha=16,32,64[/bold]  one key, three values

    [bold]nearkin compare --recipe cub/best --ablate data.image_size=224 --ablate data.random_erasing=0[/bold]  one
    change at a time

    The epoch is chosen on validation classes, and the test classes are scored once; with --vary and --ablate the
    protocol is the recipe's. The folder gets the table as Markdown, CSV and JSON, and a figure. If it is stopped, the
    same command resumes; finished runs are kept.

    Every row is compared with its base: the difference with its 95 % interval and, where that contains 0, how many
    more seeds would decide it.
    """
    from nearkin.studies.compare import compare

    for text in changes or []:
        if "=" not in text:
            raise RecipeError(f"changes are written key=value, got {text!r}; a recipe is named with --recipe")
    given = {"data.root": data_root, "training.device": device, "data.class_folders": class_folders}
    study = compare(
        data,
        recipe=recipe,
        rows=options.names_in(rows),
        rows_from=rows_from,
        vary=vary,
        ablate=ablate or (),
        against=against,
        seeds=seeds,
        changes=options.changes_from(changes or [], {**given, "training.epochs": epochs}),
        folder=output,
        train=False,
    )
    if listing:
        print_table(study.listing(), format_, as_json=as_json)
    else:
        _run(study, format_, as_json, verbose, jobs=jobs, overwrite=overwrite)


@app.command(rich_help_panel=COMPARE)
def mlrc(
    arguments: options.RecipeAndChanges = None,
    data: options.Data = None,
    repeats: Annotated[int, Option(min=1, help="Models per fold; two or more give confidence intervals.")] = 1,
    jobs: options.Jobs = 1,
    output: options.RunsFolder = None,
    class_folders: options.ClassFolders = None,
    format_: options.Format = "table",
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Score a recipe by cross-validation over classes, as "A Metric Learning Reality Check" (MLRC) does.

    [bold]nearkin mlrc cub/proxy_anchor --jobs 4 encoder.dim=128[/bold]  four models at a time

    [bold]nearkin mlrc cub/proxy_anchor --repeats 10 --jobs 4 encoder.dim=128[/bold]  with confidence intervals

    The training classes are split into four folds (protocol.folds). Each model leaves one fold out of its training and
    chooses its epoch there. The test classes are scored once, by each model alone and by the embeddings of all four
    concatenated. The folder gets every model, mlrc.json and mlrc.md. If it is stopped, the same command resumes; more
    repeats keep the models that are there.
    """
    from nearkin.studies.mlrc import RealityCheck

    given = {"data.root": data_root, "training.device": device, "data.class_folders": class_folders}
    recipe = options.recipe_from(arguments, data, given)
    _run(RealityCheck(recipe, repeats, output), format_, as_json, verbose, jobs=jobs)


@app.command(rich_help_panel=COMPARE)
def reproduce(
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar="[TABLE] [KEY=VALUE]...",
            help="A table or figure such as ccp/table-6, then changes to every row. Without a table, or with a paper "
            "such as ccp, the tables are listed.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="Data sets, separated by commas. Default: all of the table. On others (glyphs, a folder of photos) "
            "the methods are trained as suits the data, and nothing published is comparable."
        ),
    ] = None,
    rows: Annotated[str | None, Option(help="Rows that --list shows, separated by commas.")] = None,
    seeds: Annotated[int, Option(min=1, help="Runs of each row; with MLRC, models per fold.")] = 1,
    jobs: options.Jobs = 1,
    backbone: Annotated[str | None, Option(help="Another backbone than the paper's.")] = None,
    weights: Annotated[
        str | None,
        Option(
            help="File with the backbone's ImageNet weights; none to start from scratch. Default: "
            "weights/<backbone>.safetensors or .pth below the data root."
        ),
    ] = None,
    epochs: options.Epochs = None,
    output: Annotated[Path | None, options.output("For tables and runs. Default: runs/reproduce/<paper>.")] = None,
    listing: options.ListRows = False,
    format_: options.Format = "table",
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Train the rows of a published table or figure and print the scores next to the published ones.

    [bold]nearkin reproduce[/bold]  the tables and figures of the papers (ccp, isa, mpa, profs, vcpa), and what
    is missing to run each

    [bold]nearkin reproduce mpa/table-4 --list[/bold]  its rows, and the command that trains each

    [bold]nearkin reproduce ccp/table-6 --data cub --rows c2,c2_ccp --jobs 4[/bold]  two rows, four models at a time

    [bold]nearkin reproduce vcpa/figure-7 --backbone resnet50_v1 --weights resnet50.pth[/bold]  another backbone

    [bold]nearkin reproduce mpa/table-7 --data glyphs[/bold]  the same methods, nothing to download

    A row is a recipe in recipes/papers/<paper>/ with the paper's hyper-parameters. A row whose data or weights are
    missing is skipped, and the table says so. The folder gets the table as Markdown, CSV and JSON, and a figure; tables
    of one paper share their runs. If it is stopped, the same command resumes; finished runs are kept.
    """
    from nearkin.studies.papers import Settings, find_item, list_tables, papers
    from nearkin.studies.reproduce import reproduce

    name, changes = options.split_arguments(arguments, what="table")
    changes = options.changes_from(changes, {"training.epochs": epochs, "training.device": device})
    settings = Settings(backbone, weights, None if data_root is None else str(data_root), tuple(changes))
    if name is None or name in papers():
        print_table(list_tables(name, settings), as_json=as_json)
        return
    if (instead := find_item(name).instead) is not None:
        print(json.dumps({"table": name, "instead": instead}) if as_json else f"{name}: {instead}")
        return
    study = reproduce(
        name,
        data=options.names_in(data),
        rows=options.names_in(rows),
        seeds=seeds,
        settings=settings,
        folder=output,
        console=progress_console(verbose),
        train=False,
    )
    if listing:
        _print_rows(study.wanted, as_json)
    else:
        _run(study, format_, as_json, verbose, jobs=jobs)


def _print_rows(rows: Sequence[Row], as_json: bool) -> None:
    """Every row with its published scores and the command that trains it."""
    if as_json:
        print(json.dumps([_row_record(row) for row in rows]))
        return
    for row in rows:
        scores = ", ".join(f"{value.metric} {value.text}" for value in row.published)
        say(f"\n{row.name} on {row.data}: {row.title}" + (f"; published: {scores}" if scores else ""))
        if row.command is not None:
            say(f"  {row.command}")
        if row.problem is not None:
            say(f"  cannot be run here: {row.problem}")


def _row_record(row: Row) -> dict[str, Any]:
    published = {f"{value.dim}-d {value.protocol} {value.metric}": value.value for value in row.published}
    texts = {"name": row.name, "title": row.title, "data": row.data, "command": row.command, "problem": row.problem}
    return {**texts, "recipe": row.recipe.as_mapping() if row.command else None, "published": published}


@app.command(rich_help_panel=COMPARE)
def tune(
    arguments: options.RecipeAndChanges = None,
    *,
    space: Annotated[
        list[str],
        Option(
            help="What to vary; repeat for more keys. A range key=low..high or key=low..high:log (logarithmic), values "
            "key=a,b,c, a YAML file of these, or one of nearkin's: ccp, vcpa, optimiser."
        ),
    ],
    data: options.Data = None,
    trials: Annotated[int | None, Option(min=1, help="Trials in all. Default: 20, or the whole grid.")] = None,
    seeds: Annotated[int, Option(min=1, help="Models per trial; their mean score counts.")] = 1,
    jobs: options.Jobs = 1,
    sampler: Annotated[
        Literal["tpe", "random", "grid"],
        Option("--sampler", help="What suggests the next trial; grid: every combination of listed values."),
    ] = "tpe",
    pruner: Annotated[
        Literal["median", "none"] | None,
        Option("--pruner", help="median stops trials below the median of others. Default: median; grid: none."),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Of the sampler; models have training.seed.")] = 0,
    epochs: options.Epochs = None,
    output: options.RunsFolder = None,
    class_folders: options.ClassFolders = None,
    format_: options.Format = "table",
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Search for better hyper-parameters with Optuna, by the scores of validation classes.

    A trial trains the recipe with other values of the keys in --space.

    [bold]nearkin tune glyphs/demo --space training.learning_rate=1e-4..1e-2:log --trials 30[/bold]  one key

    [bold]nearkin tune glyphs/ccp --space ccp --trials 40 --epochs 5[/bold]  CCP's proximal weight and proxies

    [bold]nearkin tune glyphs/ccp --space method.proximal_weight=0,1e-4,1e-2 --space method.proxies_per_class=1,2,4
    --sampler grid[/bold]  every pair of values

    The test classes are not scored. The folder gets every trial as a run, trials.csv, Optuna's plots and the best
    recipe as best.yaml, ready to be trained. If it is stopped, the same command resumes, also with more --trials.
    """
    from nearkin.studies.tune import tune

    for text in arguments or []:
        if re.search(r"=[-+]?\d[-+.\de]*\.\.[-+.]?\d", text):
            raise RecipeError(f"{text} is a range, which goes after --space: --space {text}")
    given = {"data.root": data_root, "training.device": device, "data.class_folders": class_folders}
    recipe = options.recipe_from(arguments, data, {**given, "training.epochs": epochs})
    settings: dict[str, Any] = {"trials": trials, "seeds": seeds, "sampler": sampler, "pruner": pruner, "seed": seed}
    _run(tune(recipe, space, **settings, folder=output, train=False), format_, as_json, verbose, jobs=jobs)


def _run(study: Study | Search, format_: str, as_json: bool, verbose: bool, **training: Any) -> None:
    """Run a study from its plan to its table; the last line says why runs did not finish."""
    for line in study.plan():
        say(line, stderr=True)
    progress = progress_console(verbose)
    outcomes = study.run(console=progress, announce=announcer(progress, as_json=as_json), **training)
    files = study.write()
    if as_json:
        print(json.dumps(study.record()))
    else:
        print_table(study.table(), format_)
        if format_ == "table":
            say(f"Written: {', '.join(map(str, files))}")
            for step in study.next_steps():
                say(f"Next: {step}")
    if (failure := study.failure(outcomes)) is not None:
        message, code = failure
        label_line("error", "bold red", message)
        raise typer.Exit(code)
