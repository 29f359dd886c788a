"""CCP: a sequence of proxy problems, each started from new images and held near the previous solution."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nearkin import losses
from nearkin.data.loader import Batch
from nearkin.errors import RecipeError
from nearkin.evaluation.protocol import refuse_test_scores
from nearkin.numerics import check_at_least, normalise
from nearkin.proxies import ProxyBank, greedy_k_center
from nearkin.ranks import gather_rows, share_of
from nearkin.recipe import Recipe
from nearkin.samplers.sampler import generator
from nearkin.training.optimisation import ProximalTerm
from nearkin.training.state import Event, Method, TrainingState

__all__ = ["Ccp"]

_KEPT = ["events", "problem", "problem_began", "problem_best", "without_improvement"]
"""Attributes that a checkpoint holds as they are."""
_INSTEAD = "set method.steps_per_problem or method.problem_share"
_NO_SCORES = f"CCP ends its sub-problems by the scores of validation classes, and {{}}: {_INSTEAD}"


@dataclass(kw_only=True, eq=False)
class Ccp(Method):
    r"""Chance-constrained alternating proxy problems (CCP, algorithm 1).

    Each sub-problem minimises ``loss(batch, proxies) + λ/2 ‖θ − θ*‖²`` over the network θ and K proxies per class. When
    it has converged, θ* becomes the weights of its best evaluation, and new proxies start from images: of b images per
    class, embedded with the present network, greedy k-centre takes the K farthest from the proxies that the sub-problem
    ended with (from K random images at the very start). The schedule ``plateau`` counts from zero in each sub-problem,
    as scores dip where it begins.

    A pair loss gets the proxies as its references. A loss that owns proxies (Proxy-Anchor, MPA, ISA, …) keeps them, and
    CCP moves them to the chosen images; ``proxies_per_class`` is then the loss's. Such proxies lie all around the
    origin, while images have a common mean, which is subtracted first.

    Args:
        proxies_per_class: K; 8 for CUB and Cars, 4 for SOP and In-shop (section 6.1).
        pool_size: b, images per class to choose from; 12 and 7. With ``b = K`` the choice is random.
        pool: embed evaluation crops of these images (``"plain"``), or crops as in training (``"augmented"``, as
            released).
        raw_proxies: choose and start proxies from what the projection gives, before it is normalised (as released).
        best_proxies: move away from the proxies of the sub-problem's best evaluation, not from those it ended with (as
            released).
        proximal_weight: λ of the proximal term.
        patience: evaluations without improvement after which a sub-problem has converged.
        min_improvement: what counts as an improvement of the score that the protocol selects by.
        steps_per_problem: end every sub-problem after this many steps instead of by its scores.
        problem_share: the same as a share of the whole run, if no number of steps is given.
        early_stop_patience: evaluations on validation classes without a new best that end the whole training, unless
            ``training.early_stop_patience`` is set.
        warmup_steps: steps of the loss alone before the first sub-problem, as embeddings of an untrained network nearly
            coincide. Pretrained networks need none.
        warmup_share: the same as a share of the whole run, if no number of steps is given.
        anchors: ``"proxies"``, or ``"samples"`` (MNIST study): the chosen images are embedded in every step.
        as_released: what the authors' code does: no pull in the first sub-problem, and a tenth of the loss on pairs
            within the batch is added. With ``raw_proxies`` the first proxies are those far from the origin, not from
            random images.
    """

    proxies_per_class: int = 8
    pool_size: int = 12
    pool: Literal["plain", "augmented"] = "plain"
    raw_proxies: bool = False
    best_proxies: bool = False
    proximal_weight: float = 2e-4
    patience: int = 3
    min_improvement: float = 1e-5
    steps_per_problem: int | None = None
    problem_share: float | None = None
    early_stop_patience: int = 60
    warmup_steps: int = 0
    warmup_share: float = 0.0
    anchors: Literal["proxies", "samples"] = "proxies"
    as_released: bool = False
    bank: ProxyBank = field(init=False, repr=False)
    """The proxies, from :meth:`Method.build` on."""

    def __post_init__(self) -> None:
        counts = ("proxies_per_class", "pool_size", "patience", "early_stop_patience", "steps_per_problem")
        check_at_least(1, **{name: getattr(self, name) for name in counts})
        check_at_least(0, warmup_steps=self.warmup_steps, proximal_weight=self.proximal_weight)
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share must be at least 0 and below 1, got {self.warmup_share}")
        if self.problem_share is not None and not 0 < self.problem_share <= 1:
            raise ValueError(f"problem_share must be above 0 and at most 1, got {self.problem_share}")
        self.events: list[Event] = []
        self.problem = 0
        self.problem_began = 0
        self.without_improvement = 0
        self.problem_best = -math.inf
        self._reference = ProximalTerm()
        self._best_weights: list[Tensor] | None = None
        self._best_proxies: Tensor | None = None
        self._anchor_rows: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)
        self._feeds_references = True

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        super().check(recipe)
        name, options = recipe.objective.name, recipe.method.options
        kind, ccp = losses.kind(losses.loss_named(name)), cls(**options)
        if kind == "wrapper":
            raise RecipeError(f"CCP cannot give proxies to {name}, which has references of its own: use the pair loss")
        if name == "vcpa" and recipe.objective.options.get("newton_steps", 10) != 0:
            raise RecipeError("VCPA's Newton steps would undo CCP's proxies at once: set objective.newton_steps=0")
        samples, own = ccp.anchors == "samples", "proxies_per_class" in options
        if kind == "proxy" and (own or samples or ccp.as_released or ccp.raw_proxies):
            raise RecipeError(
                f"{name} owns its proxies: set objective.proxies_per_class, and leave out method.proxies_per_class, "
                f"anchors, as_released and raw_proxies, each of which needs a pair loss"
            )
        if samples and (ccp.raw_proxies or ccp.best_proxies):
            raise RecipeError("method.raw_proxies and method.best_proxies need method.anchors=proxies")
        if ccp.best_proxies and not ccp._ends_by_scores:
            raise RecipeError("method.best_proxies needs sub-problems that end by scores, not after a number of steps")
        if recipe.objective.options.get("length_penalty") is not None and not ccp.raw_proxies:
            raise RecipeError(
                "objective.length_penalty keeps lengths, which proxies need too: set method.raw_proxies=true"
            )
        if kind == "pair" and ccp.pool_size < ccp.proxies_per_class:
            raise RecipeError("method.pool_size must be at least method.proxies_per_class")
        if ccp._ends_by_scores:
            if recipe.protocol.name == "everything":
                raise RecipeError(_NO_SCORES.format("where every class trains there are none"))
            if recipe.training.schedule == "plateau" and recipe.training.lr_decay_every >= ccp.patience:
                raise RecipeError(
                    f"the plateau schedule starts again in every sub-problem of CCP, which ends before it lowers the "
                    f"rate: raise method.patience ({ccp.patience}) above training.lr_decay_every "
                    f"({recipe.training.lr_decay_every}), or set training.schedule=constant"
                )
            refuse_test_scores(recipe.protocol, "CCP would end its sub-problems", instead=_INSTEAD)

    def build(self, *, num_classes: int, dim: int, objective: nn.Module) -> nn.Module | None:
        bank = getattr(objective, "bank", None)
        if isinstance(bank, ProxyBank):
            self.bank, self._feeds_references = bank, False
            return None
        self.bank = ProxyBank(num_classes, self.proxies_per_class, dim)
        return self.bank

    def start(self, state: TrainingState) -> None:
        if self._ends_by_scores and state.protocol.selection_set() is None:
            raise RecipeError(_NO_SCORES.format("these data leave none to hold out"))
        if self._warmup(state) == 0:
            self._begin_problem(state, first=True)

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        if not self._feeds_references or self.problem == 0:
            return super().loss(state, embeddings, labels, batch)
        if self.anchors == "samples":
            rows = self._anchor_rows.ravel()
            local = share_of(len(rows))
            references = gather_rows(state.encoder(state.train_set.pixels(rows[local.start : local.stop])), len(rows))
        else:
            references = self.bank.whole().flatten(0, 1)
        owners = torch.arange(self.bank.classes, device=labels.device).repeat_interleave(self.bank.per_class)
        value: Tensor = state.objective(embeddings, labels, references, owners)
        if self.as_released:
            value = value + 0.1 * state.objective(embeddings, labels)
        return value

    def adjust_gradients(self, state: TrainingState) -> None:
        if not (self.as_released and self.problem == 1):
            self._reference.add_to_gradients(state.weights, self.proximal_weight)

    def after_step(self, state: TrainingState) -> None:
        if self.problem == 0:
            if state.step >= self._warmup(state):
                # A loss that owns proxies has trained them during the warm-up.
                self._begin_problem(state, first=self._feeds_references)
        elif not self._ends_by_scores and state.step - self.problem_began >= self._problem_steps(state):
            self._best_weights = None  # without scores the last weights are the solution
            self._begin_problem(state)

    def after_evaluation(self, state: TrainingState, scores: dict[str, float]) -> bool:
        score = scores.get(state.protocol.select_by, math.nan)
        if not self._ends_by_scores or self.problem == 0:
            return False
        # A score of NaN is no improvement.
        if score > self.problem_best + self.min_improvement or self._best_weights is None:
            self.problem_best = score if not math.isnan(score) else -math.inf
            self.without_improvement = 0
            self._best_weights = [p.detach().clone() for p in state.weights]
            if self.best_proxies:
                self._best_proxies = self.bank.whole().detach().clone()
        else:
            self.without_improvement += 1
        if self.without_improvement >= self.patience:
            self._begin_problem(state)
        return False

    @property
    def _ends_by_scores(self) -> bool:
        return self.steps_per_problem is None and self.problem_share is None

    def _problem_steps(self, state: TrainingState) -> int:
        return self.steps_per_problem or max(1, round((self.problem_share or 0) * state.planned_steps))

    def _warmup(self, state: TrainingState) -> int:
        return self.warmup_steps or round(self.warmup_share * state.planned_steps)

    def _begin_problem(self, state: TrainingState, *, first: bool = False) -> None:
        self._reference.remember(self._best_weights if self._best_weights is not None else state.weights)
        self._best_weights, self.problem_best, self.without_improvement = None, -math.inf, 0
        self.problem += 1
        steps, self.problem_began = state.step - self.problem_began, state.step
        self._restart_proxies(state, first=first)
        self._best_proxies = None
        if isinstance(state.scheduler, ReduceLROnPlateau):
            state.scheduler._reset()
        self.events.append({"step": state.step, "kind": "problem", "number": self.problem, "steps_before": steps})

    @torch.no_grad()
    def _restart_proxies(self, state: TrainingState, *, first: bool) -> None:
        bank = self.bank
        rows, valid, pool = self._random_images(state, self.problem, max(self.pool_size, bank.per_class))
        mean = pool[valid].mean(dim=0)
        if not self._feeds_references:
            # With the common mean, every proxy would start near every image.
            pool = normalise(pool - mean, "l2")
        if not first:
            held = self._present(state)
        elif self.as_released and self.raw_proxies:
            # The authors' code has zeros until the first best evaluation, so its first pick is the longest vector. With
            # normalised vectors rounding would decide which that is.
            held = torch.zeros_like(pool[:, :1])
        else:
            held = self._random_images(state, 0, bank.per_class)[2]
            held = held if self._feeds_references else normalise(held - mean, "l2")
        picks = greedy_k_center(pool, held, bank.per_class, valid=valid)
        chosen = pool.gather(1, picks.unsqueeze(2).expand(-1, -1, pool.shape[2]))
        if not self._feeds_references:
            # They are compared by angle; their length only decides how far a step turns them, so it is kept.
            length = bank.whole().norm(dim=2, keepdim=True)
            chosen = chosen * length.where(length > 0, 1)
        bank.restart(chosen)
        self._anchor_rows = np.take_along_axis(rows, picks.cpu().numpy(), axis=1)
        for parameter in bank.parameters():
            state.optimiser.state.pop(parameter, None)

    def _present(self, state: TrainingState) -> Tensor:
        """The proxies the sub-problem ended with, as points of the embedding space."""
        if self.anchors == "samples":
            return state.train_set.embed(self._anchor_rows.ravel()).view(*self._anchor_rows.shape, -1)
        vectors = self.bank.whole().detach() if self._best_proxies is None else self._best_proxies
        return vectors if self.raw_proxies else normalise(vectors, state.encoder.normalisation)

    def _random_images(
        self, state: TrainingState, problem: int, count: int
    ) -> tuple[NDArray[np.int64], Tensor, Tensor]:
        """``count`` random training images of each class ``[C, count]``, which of them are valid, and their embeddings.

        A class with fewer images is filled with its first one.
        """
        seed, labels, classes = state.recipe.training.seed, state.labels, self.bank.classes
        # The rows are shuffled and then sorted by class, so the first of each class are a random choice.
        order = generator(seed, 2, problem).permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        starts = np.searchsorted(labels[order], np.arange(classes))
        sizes = np.bincount(labels, minlength=classes)
        column = np.arange(count)[None, :]
        valid = column < np.minimum(sizes, count)[:, None]
        rows = order[starts[:, None] + np.where(valid, column, 0)].astype(np.int64)
        encoder = state.encoder.without_normalisation() if self.raw_proxies else None
        augmented = None if self.pool == "plain" else lambda index: generator(seed, 2, problem, index)
        embeddings = state.train_set.embed(rows.ravel(), encoder=encoder, augmented=augmented).view(*rows.shape, -1)
        return rows, torch.from_numpy(valid).to(embeddings.device), embeddings

    def state_dict(self) -> dict[str, Any]:
        return {
            "bank": self.bank.state_dict() if self._feeds_references else None,
            "reference": self._reference.centre,
            "best_weights": self._best_weights,
            "best_proxies": self._best_proxies,
            "anchor_rows": torch.from_numpy(self._anchor_rows),
            **{name: getattr(self, name) for name in _KEPT},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["bank"] is not None:
            self.bank.load_state_dict(state["bank"])
        device, weights, proxies = self.bank.vectors.device, state["best_weights"], state["best_proxies"]
        self._reference.centre = state["reference"]
        self._best_weights = None if weights is None else [w.to(device) for w in weights]
        self._best_proxies = None if proxies is None else proxies.to(device)
        self._anchor_rows = state["anchor_rows"].numpy()
        for name in _KEPT:
            setattr(self, name, state[name])
