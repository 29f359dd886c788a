"""Commands that list what there is to choose from."""

from __future__ import annotations

from nearkin.cli._app import LOOK_UP, DataRoot, Json, Markdown, app, print_listing

__all__ = ["backbones", "datasets", "keys", "losses", "methods", "plots", "recipes", "scores"]


@app.command(rich_help_panel=LOOK_UP)
def datasets(data_root: DataRoot = None, as_json: Json = False) -> None:
    """List the benchmarks and what is found of them under the data root."""
    from nearkin.data.source import data_root as root_of
    from nearkin.report.listings import list_datasets

    print_listing(list_datasets(root_of(data_root)), as_json=as_json)
    if not as_json:
        print("Put data sets below one folder and name it with --data-root or NEARKIN_DATA.")


@app.command(rich_help_panel=LOOK_UP)
def losses(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the losses, with their options and defaults: names for a recipe's objective.name."""
    from nearkin.report.listings import list_losses

    print_listing(list_losses(), as_json=as_json, markdown=markdown)


@app.command(rich_help_panel=LOOK_UP)
def methods(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the training methods, with their options and defaults: names for a recipe's method.name."""
    from nearkin.report.listings import list_methods

    print_listing(list_methods(), as_json=as_json, markdown=markdown)


@app.command(rich_help_panel=LOOK_UP)
def backbones(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the backbones, with their options and defaults: names for a recipe's encoder.backbone."""
    from nearkin.report.listings import list_backbones

    print_listing(list_backbones(), as_json=as_json, markdown=markdown)


@app.command(rich_help_panel=LOOK_UP)
def scores(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the scores and what they mean: names for a recipe's protocol.scores and protocol.select_by."""
    from nearkin.report.listings import list_scores

    print_listing(list_scores(), as_json=as_json, markdown=markdown)


@app.command(rich_help_panel=LOOK_UP)
def plots(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the pictures: names for nearkin plot --only."""
    from nearkin.report.listings import list_plots

    print_listing(list_plots(), as_json=as_json, markdown=markdown)


@app.command(rich_help_panel=LOOK_UP)
def recipes(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the recipes that come with nearkin; as Markdown or JSON with the scores to expect."""
    from nearkin.report.listings import Listing
    from nearkin.studies.expected_scores import listed_recipes, recipes_page

    listed = listed_recipes()
    if markdown:
        print(recipes_page(listed), end="")
        return
    print_listing(Listing("Recipes", "", ("name", "summary"), tuple(listed)), as_json=as_json)


@app.command(rich_help_panel=LOOK_UP)
def keys(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the keys of a recipe: what train, compare and others take as key=value, with defaults and meanings."""
    from nearkin.report.listings import list_keys

    print_listing(list_keys(), as_json=as_json, markdown=markdown)
