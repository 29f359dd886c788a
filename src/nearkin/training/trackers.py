"""Libraries that compare runs: each name in ``training.track`` is an observer that passes the run on to one."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearkin.errors import RecipeError, notice, require
from nearkin.ranks import is_first
from nearkin.recipe import Recipe, flat
from nearkin.training.folder import write
from nearkin.training.state import Evaluation, Observer, TrainingState


def trackers(recipe: Recipe, folder: Path) -> list[Observer]:
    """The trackers of ``training.track``, for the run in ``folder``; only the first of several processes tracks."""
    by_name = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
    names = dict.fromkeys(recipe.training.track) if is_first() else ()
    return [by_name[name](name, folder.resolve()) for name in names]


class Tracker(Observer):
    """Passes recipe, losses and scores to a library; subclasses have ``begin``, ``log`` and ``end``.

    A library that fails before the first step ends the run; a later failure does not.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.library: Any = require(name, name)
        self.id_file = folder / f"{name}-id.txt"
        """Holds the library's id of this run, which a resumed run continues."""
        self.is_open = False

    def known_id(self) -> str | None:
        return self.id_file.read_text(encoding="utf-8") if self.id_file.exists() else None

    def on_start(self, state: TrainingState) -> None:
        try:
            self.begin(state.recipe, state.step)
        except Exception as error:
            remedy = "check its address and login, or leave it out of training.track"
            raise RecipeError(f"{self.name} cannot track this run ({error}): {remedy}") from error
        self.is_open = True

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        if math.isfinite(loss):  # on a GPU the first step's is not known yet
            self._call("log", {"loss": loss}, state.step)

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        scores = {f"evaluation/{name}": float(value) for name, value in row.items() if name != "step"}
        self._call("log", scores, state.step)

    def on_test(self, state: TrainingState, scores: Mapping[str, float]) -> None:
        self._call("log", {f"test/{name}": value for name, value in scores.items()}, state.step)

    def close(self, *, failed: bool) -> None:
        self._call("end", failed)
        self.is_open = False

    def _call(self, method: str, *arguments: Any) -> None:
        if self.is_open:
            try:
                getattr(self, method)(*arguments)
            except Exception as error:  # such as a server that is away
                self.is_open = False
                notice(f"{self.name} no longer tracks this run ({error}); the run continues")

    def begin(self, recipe: Recipe, step: int) -> None:
        raise NotImplementedError

    def log(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def end(self, failed: bool) -> None:
        raise NotImplementedError


class TensorBoard(Tracker):
    """Events in the folder ``tensorboard`` of the run."""

    def begin(self, recipe: Recipe, step: int) -> None:
        events: Any = require("torch.utils.tensorboard", self.name)
        self.writer = events.SummaryWriter(str(self.folder / "tensorboard"), purge_step=step + 1 if step else None)
        self.writer.add_text("recipe", f"```yaml\n{recipe.to_yaml()}```", step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def end(self, failed: bool) -> None:
        self.writer.close()


class WandB(Tracker):
    """A run of W&B, with its files in the folder ``wandb`` of the run."""

    def begin(self, recipe: Recipe, step: int) -> None:
        run_id = self.known_id() or secrets.token_hex(4)
        self.run = self.library.init(
            project=os.environ.get("WANDB_PROJECT") or "nearkin",
            name=self.folder.name,
            dir=str(self.folder),
            id=run_id,
            resume="allow",
            settings=self.library.Settings(console="off"),  # the progress bar does not belong into a log
        )
        write(self.id_file, run_id.encode())
        self.run.config.update(recipe.as_mapping(), allow_val_change=True)
        # W&B's own step never decreases, but a resumed run goes back to its last checkpoint.
        self.run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, "step": step})

    def end(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class MLflow(Tracker):
    """A run of MLflow, in the store of its environment variables, else in ``mlflow.db`` next to the run's folder."""

    def begin(self, recipe: Recipe, step: int) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder.parent / 'mlflow.db'}"
        self.client = self.library.MlflowClient(tracking_uri=uri)
        self.waiting: list[Any] = []
        self.sent = time.monotonic()
        self.run_id = self._run_id()
        write(self.id_file, self.run_id.encode())
        entities, known = self.library.entities, self.client.get_run(self.run_id).data.params
        given = {key: str(value) for key, value in flat(recipe.as_mapping()).items()}
        params = [entities.Param(key, value) for key, value in given.items() if key not in known]
        # A parameter keeps its first value, a tag can change.
        tags = [entities.RunTag(key, value) for key, value in given.items() if known.get(key, value) != value]
        for first in range(0, len(params), 100):  # as many as a request holds
            self.client.log_batch(self.run_id, params=params[first : first + 100])
        self.client.log_batch(self.run_id, tags=tags)

    def _run_id(self) -> str:
        if run_id := self.known_id():
            try:
                self.client.update_run(run_id, status="RUNNING")
                return run_id
            except self.library.MlflowException:  # it was deleted, or is in another store
                pass
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "nearkin"
        experiment = self.client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(name)
        return str(self.client.create_run(experiment_id, run_name=self.folder.name).info.run_id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        for name, value in values.items():
            metric = self.library.entities.Metric(name.replace("@", "_at_"), value, now, step)  # @ is not allowed
            self.waiting.append(metric)
        # A request takes as long as a step on a GPU, and holds at most a thousand values.
        if "loss" not in values or time.monotonic() - self.sent > 5 or len(self.waiting) > 500:
            self._send()

    def _send(self) -> None:
        self.client.log_batch(self.run_id, metrics=self.waiting)
        self.waiting, self.sent = [], time.monotonic()

    def end(self, failed: bool) -> None:
        self._send()
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
