"""Search over hyper-parameters with Optuna, on validation classes only, in a folder that can be gone on with.

plan → trials → search: what is searched, one point of it from Optuna's suggestion to its score, and the whole of it,
one trial at a time or several side by side.
"""

from __future__ import annotations

from nearkin.studies.tune.plan import Plan
from nearkin.studies.tune.search import Search, tune
from nearkin.studies.tune.space import Dimension, read_space
from nearkin.studies.tune.trials import Trial, Tuning, read_tuning

__all__ = ["Dimension", "Plan", "Search", "Trial", "Tuning", "read_space", "read_tuning", "tune"]
