"""Products of methods and losses by recipe alone: those that make sense run, the others are refused with the reason."""

from __future__ import annotations

import math

import pytest
import torch

from nearkin import losses
from nearkin.errors import RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import methods
from nearkin.training.loop import fit
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

CCP = ["method.name=ccp", "method.pool_size=3", "method.steps_per_problem=4"]
PROFS = ["method.name=profs", "method.steps_per_projection=4"]
XBM = ["objective.name=cross_batch_memory", "objective.size=50", "objective.warmup_steps=1"]
# Eight steps are four epochs of the 17 training images: ISA's memory and filter have both gone on.
STEPS = 8


class Recorder(Observer):
    def __init__(self):
        self.losses = []

    def on_step(self, state, loss, images):
        self.losses.append(loss)


def train(state, folder):
    observer = Recorder()
    fit(state, RunFolder(folder).begin(state.recipe), observer)
    assert len(observer.losses) == STEPS
    assert all(map(math.isfinite, observer.losses))
    for module in (state.encoder, state.objective):
        assert all(torch.isfinite(value).all() for value in module.state_dict().values() if value.is_floating_point())
    return observer.losses


def test_ccp_over_mpa_ap(tiny, tmp_path):
    state = tiny(*CCP, "objective.name=mpa_ap", "objective.proxies_per_class=2", f"training.max_steps={STEPS}")
    assert state.method.bank is state.objective.bank
    train(state, tmp_path / "run")
    assert [event["step"] for event in state.method.events] == [0, 4, 8]
    # The last event has just turned the proxies to images, as seen from the mean of the pool.
    _, valid, pool = state.method._random_images(state, 3, state.method.pool_size)
    images = state.train_set.embed(state.method._anchor_rows.ravel())
    images -= pool[valid].mean(dim=0)
    found = torch.nn.functional.cosine_similarity(state.objective.bank.vectors.detach().flatten(0, 1), images)
    torch.testing.assert_close(found, torch.ones_like(found))


def test_ccp_with_informative_weights(tiny, tmp_path):
    """The weights are in use, and the proxies they weigh are those that CCP began anew."""
    options = [*CCP, "objective.name=proxy_anchor", f"training.max_steps={STEPS}"]
    weighted = tiny(*options, "objective.weighting=isa")
    values = train(weighted, tmp_path / "weighted")
    assert values != train(tiny(*options), tmp_path / "plain")
    assert weighted.objective.weighting.filter_on
    assert int(weighted.objective.weighting.diagnostics()["in_memory"].sum()) > 0
    assert weighted.method.problem == 3


def test_profs_with_a_memory(tiny, tmp_path):
    state = tiny(*PROFS, *XBM, f"training.max_steps={STEPS}")
    train(state, tmp_path / "run")
    assert state.objective.memory.fill == min(50, (STEPS - 1) * 8)
    assert [event["step"] for event in state.method.events] == [0, 4, 8]


def test_hard_negative_classes_under_proxy_anchor(tiny, tmp_path):
    options = [*PROFS, "objective.name=proxy_anchor", f"training.max_steps={STEPS}", "training.batch_size=4"]
    state = tiny(*options, "method.hard_negative_classes=true")
    proxies = state.objective.bank.vectors.detach().clone()
    batches = []
    genuine = state.method.loss

    def spy(state, embeddings, labels, batch):
        known = state.sampler.embeddings.clone()
        nearest = torch.cdist(known[labels[:1]], known)[0].argsort()[:2]
        batches.append((set(labels.tolist()), set(nearest.tolist())))
        value = genuine(state, embeddings, labels, batch)
        assert torch.equal(value, state.objective(embeddings, labels)), "the whole batch against the proxies"
        return value

    state.method.loss = spy
    train(state, tmp_path / "run")
    assert all(classes == nearest for classes, nearest in batches)
    assert not torch.equal(proxies, state.objective.bank.vectors)


def test_mpa_with_variational_proxies(tiny, tmp_path):
    state = tiny("objective.name=vcpa", "objective.proxies_per_class=3", f"training.max_steps={STEPS}")
    train(state, tmp_path / "run")
    assert state.objective.mu.shape == (5, 3, 6)
    apart = torch.cdist(state.objective.mu, state.objective.mu) + torch.eye(3)
    assert apart.min() > 1e-3, "a class's proxies have gone different ways"
    assert (state.objective.sigma < 1).any()


@pytest.mark.parametrize(
    "overrides",
    [
        [*CCP, "objective.name=vcpa", "objective.newton_steps=0", "objective.proxies_per_class=2"],
        [*CCP, "objective.name=mpa", "objective.weighting=isa", "objective.proxies_per_class=2"],
        [*PROFS, "objective.name=vcpa", "objective.proxies_per_class=2"],
        [*PROFS, "objective.name=proxy_isa"],
        [*PROFS, "objective.name=mpa_ap", "method.hard_negative_classes=true"],
        [*PROFS, *XBM, "method.hard_negative_classes=true", "objective.pair_loss.name=triplet"],
    ],
    ids=lambda value: "-".join(str(part).split("=")[-1] for part in value),
)
def test_more_products_run(overrides, tiny, tmp_path):
    losses_seen = train(tiny(*overrides, f"training.max_steps={STEPS}"), tmp_path / "run")
    assert len(set(losses_seen)) > 1, "nothing was learned from"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["method.name=ccp", *XBM], "references of its own: use the pair loss"),
        (["method.name=ccp", "objective.name=vcpa"], "Newton steps would undo.*objective.newton_steps=0"),
        (["method.name=ccp", "objective.name=vcpa", "objective.proxies_per_class=3"], "Newton steps"),
        (["method.name=ccp", "objective.name=mpa_ap", "method.proxies_per_class=3"], "owns its proxies"),
        (["method.name=ccp", "objective.name=proxy_anchor", "method.anchors=samples"], "needs a pair loss"),
        (["method.name=ccp", "method.pool_size=2", "method.proxies_per_class=3"], "pool_size must be at least"),
        (["method.name=ccp", "protocol.name=conventional"], "by the scores of the test classes"),
        (["method.name=ccp", "method.proximal_weight=-1"], "method.proximal_weight must be at least 0, got -1"),
        (["method.name=ccp", "method.proximal_weight=.nan"], "method.proximal_weight must be a finite number, got nan"),
        (["method.name=ccp", "objective.name=mpa", "method.as_released=true"], "mpa owns its proxies"),
        (["objective.name=vcpa", "objective.tau=-1"], "objective.tau must be positive, got -1"),
        (["objective.name=mpa", "objective.weighting.name=isa", "objective.weighting.memory_size=0"], "memory_size"),
        (["protocol.select_by=R@3"], "a score that is measured"),
        (["method.name=profs", "training.images_per_class=1"], "two images of two classes"),
        (["method.name=profs", "training.sampler=random", "training.batch_size=9"], r"batch_size \(9\) a multiple"),
        (["method.name=profs", "training.batch_size=2"], r"batch_size \(2\) .*at least twice as large"),
        (["method.name=profs", "method.proximal_weight=-1"], "method.proximal_weight must be at least 0"),
        (["method.name=momentum", "objective.name=proxy_anchor"], "no queue for a momentum network"),
        (["method.name=momentum", *XBM], "no queue for a momentum network"),
        (["objective.name=vcpa", "objective.weighting=isa"], "vcpa takes no weighting"),
        (["objective.name=proxy_isa", "objective.weighting=isa"], "proxy_isa takes no weighting"),
        (["objective.name=contrastive", "objective.weighting=isa"], "contrastive takes no weighting"),
        ([*XBM, "objective.pair_loss.name=proxy_anchor"], "pair_loss must be a pair loss, got 'proxy_anchor'"),
        ([*XBM, "objective.pair_loss.name=vcpa"], "pair_loss must be a pair loss, got 'vcpa'"),
    ],
    ids=lambda value: "-".join(part.split("=")[-1] for part in value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_before_any_image_is_read(overrides, reason, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.runs.run.open_data", lambda *_, **__: pytest.fail("the data have been opened"))
    tiny_recipe = {
        "objective": {"name": "contrastive"},
        "training": {"batch_size": 8, "sampler": "balanced", "images_per_class": 2, "device": "cpu"},
        "protocol": {"name": "validation"},
    }
    with pytest.raises(RecipeError, match=reason):
        run(load_recipe(tiny_recipe, overrides), RunFolder(tmp_path / "run"), Recorder())
    assert not (tmp_path / "run").exists()


def test_every_method_admits_every_loss_or_says_why_not():
    """No product falls through: a method's check accepts a loss, or refuses it by name."""
    refused = set()
    for method_name, method in methods.catalogue().items():
        for loss_name, loss in losses.catalogue().items():
            size = ["objective.size=9"] if losses.kind(loss) == "wrapper" else []
            overrides = [f"method.name={method_name}", f"objective.name={loss_name}", "protocol.name=validation", *size]
            reason = refusal(method, load_recipe({}, overrides))
            if reason is not None:
                refused.add((method_name, loss_name))
                assert loss_name in reason.lower()
    without_queue = {name for name in losses.catalogue() if name != "momentum_proxy_anchor"}
    expected = {("momentum", name) for name in without_queue} | {("ccp", "cross_batch_memory"), ("ccp", "vcpa")}
    expected |= {("proxy_updates", name) for name in losses.catalogue() if name != "proxy_anchor"}
    assert refused == expected


def refusal(method, recipe):
    try:
        method.check(recipe)
    except RecipeError as error:
        return str(error)
    return None
