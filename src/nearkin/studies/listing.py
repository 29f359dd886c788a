"""The planners there are."""

from __future__ import annotations

import inspect
from typing import TypeGuard

from nearkin.catalogue import keyword_options
from nearkin.report.listings import Listing, option_texts, summary_of
from nearkin.studies import catalogue
from nearkin.studies.compare.row_study import RowStudy
from nearkin.studies.study import Study


def list_planners() -> Listing:
    """
    >>> {each["name"]: each["command"] for each in list_planners().records}["vary"]
    'nearkin study vary'
    """
    intro = (
        "Read off the files in `src/nearkin/studies/` by `nearkin study --markdown > docs/studies.md`:\n"
        "planners say which runs answer a question and what they come to; one way to carry them out serves\n"
        "all."
    )
    records = []
    for name, planner in catalogue().items():
        command, options = f"nearkin {name}", {}
        if takes_recipe(planner):
            own = {key: each for key, each in keyword_options(planner).items() if key not in ("seeds", "folder")}
            command, options = f"nearkin study {name}", option_texts(own)
        records.append({"name": name, "command": command, "summary": summary_of(planner), "options": options})
    return Listing("Studies", intro, ("name", "command", "summary", "options"), tuple(records))


def takes_recipe(planner: type[Study]) -> TypeGuard[type[RowStudy]]:
    """Whether it plans rows around one recipe, so that ``nearkin study`` can run it."""
    return issubclass(planner, RowStudy) and next(iter(inspect.signature(planner).parameters), "") == "base"
