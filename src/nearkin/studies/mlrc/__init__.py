"""The metric-learning reality check: one model per class fold, scored one by one and side by side, with repeats."""

from __future__ import annotations

from nearkin.studies.mlrc.check import RealityCheck, mlrc, mlrc_models

__all__ = ["RealityCheck", "mlrc", "mlrc_models"]
