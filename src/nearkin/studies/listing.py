"""The planners there are."""

from __future__ import annotations

import inspect

from nearkin.catalogue import keyword_options
from nearkin.report.listings import Listing, option_texts, summary_of
from nearkin.studies import catalogue
from nearkin.studies.compare.row_study import RowStudy


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
        generic = issubclass(planner, RowStudy) and "base" in inspect.signature(planner).parameters
        own = {key: each for key, each in keyword_options(planner).items() if key not in ("seeds", "folder")}
        command = f"nearkin study {name}" if generic else f"nearkin {name}"
        records.append(
            {
                "name": name,
                "command": command,
                "summary": summary_of(planner),
                "options": option_texts(own) if generic else {},
            }
        )
    return Listing("Studies", intro, ("name", "command", "summary", "options"), tuple(records))
