from __future__ import annotations

import math
import signal

import numpy as np
import pytest
import torch

from nearkin.data.device_images import DeviceImages
from nearkin.errors import InterruptedRunError, RecipeError
from nearkin.evaluation.protocol import Protocol
from nearkin.runs.folder import RunFolder
from nearkin.samplers.sampler import generator
from nearkin.training import checkpoint
from nearkin.training.loop import fit
from nearkin.training.methods import ccp
from nearkin.training.state import Observer


def weights(state):
    return [p.detach().clone() for p in state.encoder.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def scripted(monkeypatch):
    """Validation scores that go as the test says; the first is the untrained network's, the second its test score."""

    def set_scores(values):
        rest = iter(values)
        monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": 0.5, "MAP@R": next(rest)})

    return set_scores


def test_trace_of_problems_by_hand(tiny, tmp_path, scripted):
    """Evaluations every 2 steps, patience 2. By hand, after the untrained 0.0 (twice, the second for the test classes):

    step  2: .30 best of problem 1        step  4: .20 one without     step  6: .30 two without → problem 2, θ* = step 2
    step  8: .10 best of problem 2        step 10: .40 best            step 12: .40 + 1e-6 counts as none
    step 14: .39 two without → problem 3, θ* = step 10                 step 16: nan: first of problem 3
    step 18: nan one without              step 20: nan two → problem 4, θ* = step 16
    """
    scripted([0.0, 0.0, 0.30, 0.20, 0.30, 0.10, 0.40, 0.40 + 1e-6, 0.39, math.nan, math.nan, math.nan])
    state = tiny(
        "method.name=ccp",
        "method.patience=2",
        "method.proxies_per_class=2",
        "method.pool_size=3",
        "training.max_steps=20",
    )
    at_step, references = {}, []
    method = state.method
    genuine = method._begin_problem

    def spy(state_, **options):
        genuine(state_, **options)
        references.append([c.clone() for c in method._reference.centre])

    method._begin_problem = spy

    class Watch(Observer):
        def on_step(self, state, loss, images):
            at_step[state.step] = weights(state)

    at_step[0] = weights(state)
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Watch())
    assert [(e["step"], e["number"], e["steps_before"]) for e in method.events] == [
        (0, 1, 0),
        (6, 2, 6),
        (14, 3, 8),
        (20, 4, 6),
    ]
    for centre, step in zip(references, (0, 2, 10, 16), strict=True):
        assert equal(centre, at_step[step]), f"θ* should be the weights of step {step}"


def test_proxies_start_from_the_images_that_greedy_k_centre_picks(tiny, monkeypatch):
    state = tiny("method.name=ccp", "method.proxies_per_class=2", "method.pool_size=3")
    state.method.start(state)
    state.step = 5
    ended = torch.randn_like(state.method.bank.vectors)
    state.method.bank.vectors.data.copy_(ended)
    state.optimiser.state[state.method.bank.vectors] = {"step": torch.tensor(3.0)}
    asked = []
    genuine = type(state).embed
    monkeypatch.setattr(
        type(state), "embed", lambda self, rows, **rest: asked.append(rows) or genuine(self, rows, **rest)
    )
    state.method._begin_problem(state)
    rows = asked[0].reshape(5, 3)
    embedded = genuine(state, rows.ravel()).view(5, 3, -1)
    scale = ended.norm(dim=2, keepdim=True).clamp_min(1.0)
    sizes = [5, 3, 1, 4, 4]
    for c in range(5):
        assert set(state.table.labels[rows[c]].tolist()) == {c}
        pool = list(dict.fromkeys(rows[c].tolist()))
        assert len(pool) == min(3, sizes[c]), "no image twice unless the class has too few"
        held, picked = list((ended / scale)[c]), []
        for _ in range(2):
            left = [i for i in range(len(pool)) if i not in picked] or [picked[0]]
            near = [min(float((embedded[c, i] - v).norm()) for v in held) for i in left]
            picked.append(left[int(np.argmax(near))])
            held.append(embedded[c, picked[-1]])
        assert torch.equal(state.method.bank.vectors[c], embedded[c, picked])
    assert state.method.bank.vectors not in state.optimiser.state, "moments of the old proxies are gone"


def test_pool_of_proxies_size_is_a_random_choice(tiny):
    state = tiny("method.name=ccp", "method.proxies_per_class=3", "method.pool_size=3")
    chosen = []
    for _ in range(4):
        state.method._begin_problem(state, first=state.method.problem == 0)
        chosen.append(np.sort(state.method._anchor_rows[0]).tolist())
    assert len({tuple(c) for c in chosen}) > 1
    assert all(len(set(c)) == 3 for c in chosen)


def test_the_step_is_the_loss_against_proxies_and_a_pull(tiny):
    state = tiny("method.name=ccp", "method.proximal_weight=0.5", "method.proxies_per_class=2", "method.pool_size=3")
    state.method.start(state)
    start = weights(state)
    with torch.no_grad():
        for parameter in state.encoder.parameters():
            parameter.add_(0.01)
    embeddings = torch.randn(4, 6, requires_grad=True)
    labels = torch.tensor([0, 1, 3, 4])
    value = state.method.loss(state, embeddings, labels, None)
    owners = torch.arange(5).repeat_interleave(2)
    expected = state.objective(embeddings, labels, state.method.bank.vectors.reshape(10, 6), owners)
    assert torch.equal(value, expected)
    for parameter in state.encoder.parameters():
        parameter.grad = torch.ones_like(parameter)
    frozen = next(state.encoder.parameters())
    frozen.grad = None
    state.method.adjust_gradients(state)
    assert frozen.grad is None
    for parameter, old in list(zip(state.encoder.parameters(), start, strict=True))[1:]:
        assert torch.allclose(parameter.grad, 1 + 0.5 * (parameter.detach() - old))


def test_as_released_adds_batch_pairs_and_no_pull_at_first(tiny):
    state = tiny(
        "method.name=ccp", "method.as_released=true", "method.proximal_weight=0.5", "method.proxies_per_class=2"
    )
    state.method.start(state)
    embeddings, labels = torch.randn(4, 6), torch.tensor([0, 0, 3, 3])
    owners = torch.arange(5).repeat_interleave(2)
    with_proxies = state.objective(embeddings, labels, state.method.bank.vectors.reshape(10, 6), owners)
    assert torch.allclose(
        state.method.loss(state, embeddings, labels, None), with_proxies + 0.1 * state.objective(embeddings, labels)
    )
    for expected_pull in (False, True):
        for parameter in state.encoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            next(state.encoder.parameters()).add_(1.0)
        state.method.adjust_gradients(state)
        assert (next(state.encoder.parameters()).grad.abs().sum() > 0) == expected_pull
        state.method.problem = 2


def test_samples_as_anchors_give_the_network_a_gradient(tiny):
    state = tiny("method.name=ccp", "method.anchors=samples", "method.proxies_per_class=2", "method.pool_size=2")
    state.method.start(state)
    embeddings = torch.randn(3, 6)
    value = state.method.loss(state, embeddings, torch.tensor([0, 1, 2]), None)
    value.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in state.encoder.parameters())
    assert state.method.bank.vectors.grad is None


def test_fixed_steps_need_no_validation(tiny, tmp_path):
    state = tiny(
        "method.name=ccp",
        "method.steps_per_problem=3",
        "protocol.name=conventional",
        "training.max_steps=10",
        "method.proxies_per_class=2",
        "method.pool_size=3",
    )
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert [e["step"] for e in state.method.events] == [0, 3, 6, 9]


def test_training_stops_after_evaluations_without_a_best(tiny, tmp_path, scripted):
    scripted([0.0, 0.0, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4])
    state = tiny(
        "method.name=ccp", "method.early_stop_patience=4", "training.max_steps=40", "method.proxies_per_class=2"
    )
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert state.step == 10  # best at step 2, then evaluations at 4, 6, 8 and 10 without a better one


def whole_and_resumed(tiny, overrides, tmp_path, *, stop_at):
    """A run, and the same run broken off after a step and gone on with from its checkpoint."""
    whole = tiny(*overrides)
    fit(whole, RunFolder(tmp_path / "whole").begin(whole.recipe), Observer())

    class StopAt(Observer):
        def on_step(self, state, loss, images):
            if state.step == stop_at:
                signal.raise_signal(signal.SIGTERM)

    folder = RunFolder(tmp_path / "broken").begin(whole.recipe)
    with pytest.raises(InterruptedRunError):
        fit(tiny(*overrides), folder, StopAt())
    resumed = tiny(*overrides)
    checkpoint.load_last(resumed, folder)
    fit(resumed, folder, Observer())
    return whole, resumed


@pytest.mark.parametrize(
    "objective",
    [
        "contrastive",
        "cosine_contrastive",
        "triplet",
        "margin",
        "multi_similarity",
        "lifted_structure",
        "angular",
        "mpa_ap",
        "proxy_isa",
        "soft_triple",
    ],
)
def test_interrupted_in_the_middle_of_a_problem_it_goes_on_bit_for_bit(tiny, tmp_path, objective):
    overrides = [
        "method.name=ccp",
        f"objective.name={objective}",
        "method.pool_size=3",
        "training.max_steps=9",
        "method.patience=1",
        "method.min_improvement=2",  # no score improves by as much: every second evaluation ends a problem
    ]
    if objective not in ("mpa_ap", "proxy_isa", "soft_triple"):
        overrides.append("method.proxies_per_class=2")
    if objective in ("mpa_ap", "soft_triple"):
        overrides.append("objective.proxies_per_class=2")
    whole, resumed = whole_and_resumed(tiny, overrides, tmp_path, stop_at=5)
    assert equal(weights(whole), weights(resumed))
    assert torch.equal(whole.method.bank.vectors, resumed.method.bank.vectors)
    assert whole.method.events == resumed.method.events
    assert len(whole.method.events) >= 2


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["objective.name=cross_batch_memory", "objective.size=9"], "references of its own"),
        (["objective.name=vcpa"], "Newton steps"),
        (["objective.name=mpa_ap", "method.proxies_per_class=3"], "owns its proxies"),
        (["objective.name=proxy_anchor", "method.anchors=samples"], "each of which needs a pair loss"),
        (["method.pool_size=2", "method.proxies_per_class=3"], "pool_size must be at least"),
        (["protocol.name=conventional"], "by the scores of the test classes"),
        (["method.patience=0"], "method.patience must be at least 1"),
        (["method.warmup_steps=-1"], "method.warmup_steps must be at least 0, got -1"),
        (["method.steps_per_problem=0"], "method.steps_per_problem must be at least 1"),
        (["method.problem_share=0"], "method.problem_share must be above 0 and at most 1, got 0"),
        (["method.warmup_share=1"], "method.warmup_share must be at least 0 and below 1, got 1"),
        (["method.best_proxies=true", "method.problem_share=0.2"], "not after a number of steps"),
        (["method.raw_proxies=true", "objective.name=proxy_anchor"], "raw_proxies, each of which needs a pair loss"),
        (["method.raw_proxies=true", "method.anchors=samples"], "need method.anchors=proxies"),
        (["method.best_proxies=true", "method.anchors=samples"], "need method.anchors=proxies"),
        (["method.best_proxies=true", "method.steps_per_problem=3"], "not after a number of steps"),
        (
            ["training.schedule=plateau", "training.lr_decay_every=3"],
            r"raise method.patience \(3\) above training.lr_decay_every \(3\)",
        ),
        (["objective.name=n_pair", "objective.length_penalty=0.1"], "set method.raw_proxies=true"),
        (["method.pool=plian"], "method.pool must be one of plain, augmented"),
    ],
)
def test_products_that_make_no_sense_are_refused(tiny, overrides, said):
    with pytest.raises(RecipeError, match=said):
        tiny("method.name=ccp", *overrides)


def test_vcpa_without_newton_steps_is_welcome(tiny):
    state = tiny("method.name=ccp", "objective.name=vcpa", "objective.newton_steps=0", "method.pool_size=3")
    state.method.start(state)
    assert state.objective.mu.norm(dim=1).max() <= 1 + 1e-5


def test_without_validation_classes_a_problem_needs_a_number_of_steps(tiny, table_of):
    table = table_of(held_out=0)
    given = ("method.name=ccp", "method.proxies_per_class=2", "protocol.test_share=0", "protocol.validation_share=0")
    state = tiny(*given, table=table)
    with pytest.raises(RecipeError, match="leave none to hold out: set method"):
        state.method.start(state)
    state = tiny(*given, "method.steps_per_problem=3", table=table)
    state.method.start(state)
    assert state.method.problem == 1


def test_test_scores_end_a_problem_where_the_recipe_says_that_they_may(tiny):
    given = ("method.name=ccp", "method.patience=1", "method.proxies_per_class=2", "protocol.name=conventional")
    state = tiny(*given, "protocol.monitor_test=true")
    state.method.start(state)
    for score in (0.5, 0.4):
        assert not state.method.after_evaluation(state, {state.protocol.select_by: score})
    assert state.method.problem == 2
    assert "which training also followed" in state.protocol.selection_rule


@pytest.mark.parametrize(
    ("protocol", "last"),
    [
        (["protocol.name=conventional"], 8),
        (["protocol.name=conventional", "protocol.monitor_test=true"], 4),
        (["protocol.name=validation"], 4),
    ],
)
def test_test_scores_do_not_end_the_training(tiny, tmp_path, scripted, protocol, last):
    scripted([0.0, 0.5, 0.4, 0.4, 0.4] if "validation" not in protocol[0] else [0.0, 0.0, 0.5, 0.4])
    given = (
        "method.name=ccp",
        "method.steps_per_problem=3",
        "method.early_stop_patience=1",
        "method.proxies_per_class=2",
    )
    state = tiny(*given, "training.max_steps=8", *protocol)
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert state.step == last


def test_a_new_problem_takes_variational_proxies_back_to_the_prior(tiny):
    state = tiny("method.name=ccp", "objective.name=vcpa", "objective.newton_steps=0", "method.steps_per_problem=2")
    state.method.start(state)
    bank = state.objective.bank
    with torch.no_grad():
        bank.deviation_before_softplus.fill_(-3.0)
    state.optimiser.state[bank.deviation_before_softplus]["step"] = torch.tensor(5.0)
    state.method._begin_problem(state)
    torch.testing.assert_close(bank.sigma, torch.ones_like(bank.sigma))
    assert bank.deviation_before_softplus not in state.optimiser.state


def test_a_class_with_one_image_repeats_it(tiny):
    state = tiny("method.name=ccp", "method.proxies_per_class=4", "method.pool_size=4")
    state.method.start(state)
    lone = state.method.bank.vectors[2]
    assert torch.equal(lone, lone[:1].expand_as(lone))


def test_proxies_that_a_loss_owns_turn_to_the_images_about_their_mean_and_keep_their_length(tiny):
    state = tiny("method.name=ccp", "objective.name=proxy_anchor", "method.pool_size=3", "method.steps_per_problem=5")
    bank, method = state.objective.bank, state.method
    with torch.no_grad():
        bank.vectors.mul_(torch.linspace(0.5, 3.0, bank.classes)[:, None, None])
        bank.vectors[0] = 0.0
    before = bank.vectors.norm(dim=2).clone()
    # The pool is drawn with the number of the problem, which start raises first.
    _, valid, pool = method._random_images(state, 1, 3)
    pool = pool[valid]
    method.start(state)
    images = state.train_set.embed(method._anchor_rows.ravel()).view_as(bank.vectors)
    directions = torch.nn.functional.cosine_similarity(bank.vectors, images - pool.mean(dim=0), dim=2)
    torch.testing.assert_close(directions, torch.ones_like(directions))
    torch.testing.assert_close(bank.vectors.norm(dim=2)[1:], before[1:])
    torch.testing.assert_close(bank.vectors.norm(dim=2)[0], torch.ones(1))


def test_a_warm_up_trains_with_the_loss_by_itself_and_then_begins_the_first_problem(tiny, tmp_path):
    """Two steps of warm-up, then problems of three: by hand, 1 at step 2, 2 at step 5, 3 at step 8."""
    given = ("method.steps_per_problem=3", "method.proxies_per_class=2", "method.pool_size=3", "training.max_steps=9")
    state, plain = tiny("method.name=ccp", "method.warmup_steps=2", *given), tiny("training.max_steps=9")
    after = {}

    class Watch(Observer):
        def on_step(self, state, loss, images):
            after.setdefault(state.step, []).append(weights(state))

    proxies = state.method.bank.vectors.detach().clone()
    for number, each in enumerate((state, plain)):
        fit(each, RunFolder(tmp_path / str(number)).begin(each.recipe), Watch())
    assert [(e["step"], e["number"], e["steps_before"]) for e in state.method.events] == [
        (2, 1, 2),
        (5, 2, 3),
        (8, 3, 3),
    ]
    assert all(equal(*after[step]) for step in (1, 2)), "until then it is the plain method"
    assert not equal(*after[3])
    assert not torch.equal(state.method.bank.vectors, proxies)


def test_shares_of_the_run_are_steps_whatever_its_length(tiny, tmp_path):
    """By hand: three tenths of 20 steps are 6, a fifth 4; an early stop takes the first of the same steps."""
    given = ("method.warmup_share=0.3", "method.problem_share=0.2", "method.proxies_per_class=2", "method.pool_size=3")
    began = {}
    for steps in (20, 10):
        state = tiny("method.name=ccp", *given, f"training.max_steps={steps}", "training.epochs=50")
        fit(state, RunFolder(tmp_path / str(steps)).begin(state.recipe), Observer())
        began[steps] = [event["step"] for event in state.method.events]
    assert began == {20: [6, 10, 14, 18], 10: [3, 5, 7, 9]}
    stopped = 12 / state.sampler.batches_per_epoch
    given = ("method.name=ccp", *given, "training.max_steps=20", "training.epochs=50")
    state = tiny(*given, f"training.stop_at_epoch={stopped}")
    fit(state, RunFolder(tmp_path / "stopped").begin(state.recipe), Observer())
    assert (state.step, [event["step"] for event in state.method.events]) == (12, [6, 10])
    state = tiny(*given, "method.warmup_steps=2", "method.steps_per_problem=9")
    fit(state, RunFolder(tmp_path / "steps").begin(state.recipe), Observer())
    assert [event["step"] for event in state.method.events] == [2, 11, 20], "steps that are given count"


def test_in_a_warm_up_scores_end_no_problem(tiny, tmp_path, scripted):
    # An evaluation every two steps: those at 2 and 4 are within the warm-up, and the third after it is a worse one.
    scripted([0.0, 0.0, 0.9, 0.1, 0.5, 0.6, 0.5, 0.1])
    given = ("method.patience=1", "method.proxies_per_class=2", "method.pool_size=3", "training.max_steps=12")
    state = tiny("method.name=ccp", "method.warmup_steps=5", *given)
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert [(e["step"], e["number"]) for e in state.method.events] == [(5, 1), (10, 2)]


def test_proxies_that_a_loss_owns_have_been_trained_when_the_warm_up_ends(tiny, tmp_path, monkeypatch):
    given = ("objective.name=proxy_anchor", "method.pool_size=3", "method.steps_per_problem=5", "training.max_steps=3")
    held = []
    genuine = ccp.greedy_k_center
    monkeypatch.setattr(ccp, "greedy_k_center", lambda *args, **rest: held.append(args[1]) or genuine(*args, **rest))
    state = tiny("method.name=ccp", "method.warmup_steps=3", *given)
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert len(held) == 1
    assert held[0] is not None, "what they cover is not to be covered again"


@pytest.mark.parametrize(
    "given",
    [["method.warmup_steps=4", "method.steps_per_problem=3"], ["method.warmup_share=0.45", "method.problem_share=0.3"]],
)
def test_interrupted_in_a_warm_up_it_goes_on_bit_for_bit(tiny, tmp_path, given):
    overrides = ["method.name=ccp", *given, "method.pool_size=3"]
    overrides += ["method.proxies_per_class=2", "training.max_steps=9"]
    whole, resumed = whole_and_resumed(tiny, overrides, tmp_path, stop_at=3)
    assert equal(weights(whole), weights(resumed))
    assert whole.method.events == resumed.method.events


def pooled(state, problem):
    """The pool of three images per class that a problem draws, as rows ``[classes, 3]``."""
    return state.method._random_images(state, problem, 3)[0]


def farthest_from(pool, held, count):
    """Greedy k-centre of one class, one distance at a time."""
    picked, held = [], list(held)
    for _ in range(count):
        left = [i for i in range(len(pool)) if i not in picked]
        picked.append(left[int(np.argmax([min(float((pool[i] - v).norm()) for v in held) for i in left]))])
        held.append(pool[picked[-1]])
    return picked


def test_the_first_problem_moves_away_from_random_images(tiny, table_of, monkeypatch):
    """Algorithm 1: ρ* begins as K random images of every class, and the pool's farthest from those are the proxies."""
    given = ("method.name=ccp", "method.proxies_per_class=2", "method.pool_size=3")
    state = tiny(*given, table=table_of((9, 8, 7)))
    asked = []
    genuine = type(state).embed
    monkeypatch.setattr(
        type(state), "embed", lambda self, rows, **rest: asked.append(rows) or genuine(self, rows, **rest)
    )
    state.method.start(state)
    pool_rows, random_rows = asked[0].reshape(3, 3), asked[1].reshape(3, 2)
    for c in range(3):
        assert set(state.table.labels[random_rows[c]].tolist()) == {c}
        assert len(set(random_rows[c].tolist())) == 2
        pool, start = genuine(state, pool_rows[c]), genuine(state, random_rows[c])
        torch.testing.assert_close(state.method.bank.vectors[c].detach(), pool[farthest_from(pool, start, 2)])
    assert (np.sort(random_rows) != np.sort(pool_rows[:, :2])).any(), "they are drawn by themselves"


def test_as_released_the_first_proxies_are_the_farthest_from_the_origin(tiny, table_of):
    given = ("method.name=ccp", "method.as_released=true", "method.raw_proxies=true")
    state = tiny(*given, "method.proxies_per_class=2", "method.pool_size=3", table=table_of((9, 8, 7)))
    with torch.no_grad():
        state.encoder.head.bias.normal_()
    state.method.start(state)
    for c, rows in enumerate(pooled(state, 1)):
        pool = state.train_set.embed(rows, encoder=state.encoder.without_normalisation())
        picked = farthest_from(pool, [torch.zeros(6)], 2)
        assert picked[0] == int(pool.norm(dim=1).argmax())
        torch.testing.assert_close(state.method.bank.vectors[c].detach(), pool[picked])


def test_of_normalised_vectors_the_longest_is_not_asked_for_as_rounding_would_decide(tiny, table_of):
    given = ("method.name=ccp", "encoder.normalisation=l2", "method.proxies_per_class=2", "method.pool_size=3")
    states = [tiny(*given, f"method.as_released={released}", table=table_of((9, 8, 7))) for released in (True, False)]
    for state in states:
        state.method.start(state)
    assert torch.equal(*(state.method.bank.vectors for state in states)), "both begin away from random images"


AUGMENTED = ("data.transform=standard", "data.image_size=8", "training.seed=3")


def test_an_augmented_pool_is_embedded_from_crops_as_a_batch_has_them(tiny, table_of):
    given = ("method.name=ccp", "method.pool=augmented", "method.proxies_per_class=2", "method.pool_size=3", *AUGMENTED)
    state = tiny(*given, table=table_of((5, 4, 4)))
    state.method.start(state)
    state.encoder.eval()
    bank = state.method.bank.vectors.detach()

    def crops(problem, count, c):
        # By hand, image by image: the crop of the c·count+k-th place of a problem of this seed.
        rows = state.method._random_images(state, problem, count)[0][c]
        made = [
            state.transform.train(state.train_set[row], generator(3, 2, problem, count * c + k))
            for k, row in enumerate(rows)
        ]
        return torch.stack([state.encoder(torch.from_numpy(crop)[None])[0] for crop in made]).detach()

    for c, rows in enumerate(pooled(state, 1)):
        state.encoder.eval()
        pool = crops(1, 3, c)
        torch.testing.assert_close(bank[c], pool[farthest_from(pool, crops(0, 2, c), 2)], rtol=1e-4, atol=1e-5)
        plain = state.train_set.embed(rows)
        assert (bank[c][:, None] - plain[None]).norm(dim=2).min() > 1e-3, "these are not the evaluation crops"


def test_an_augmented_pool_of_images_on_the_device_is_the_same(tiny, table_of):
    given = ("method.name=ccp", "method.pool=augmented", "method.proxies_per_class=2", "method.pool_size=3", *AUGMENTED)
    ours, placed = (tiny(*given, table=table_of((5, 4, 4))) for _ in range(2))
    placed.on_device = DeviceImages(placed.train_set.selected, torch.device("cpu"))
    for state in (ours, placed):
        state.method.start(state)
    assert torch.equal(ours.method.bank.vectors, placed.method.bank.vectors)
    assert np.array_equal(ours.method._anchor_rows, placed.method._anchor_rows)


def test_raw_proxies_are_the_heads_own_vectors_chosen_by_their_own_distances(tiny, table_of):
    given = ("method.name=ccp", "method.raw_proxies=true", "method.proxies_per_class=2", "method.pool_size=3")
    state = tiny(*given, table=table_of((5, 4, 4)))
    with torch.no_grad():
        state.encoder.head.weight.mul_(20)
        state.encoder.head.bias.normal_()
    state.method.start(state)
    rows = pooled(state, 2)
    ended = 3 * torch.randn_like(state.method.bank.vectors)
    state.method.bank.vectors.data.copy_(ended)
    state.method._begin_problem(state)
    state.encoder.eval()
    lengths = []
    for c in range(3):
        features = state.encoder.pooling(
            state.encoder.backbone(state.encoder.preprocessing(state.train_set.pixels(rows[c])))
        )
        pool = (features @ state.encoder.head.weight.T + state.encoder.head.bias).detach()
        picked = farthest_from(pool, ended[c], 2)
        torch.testing.assert_close(state.method.bank.vectors[c].detach(), pool[picked], rtol=1e-4, atol=1e-4)
        lengths.append(pool[picked].norm(dim=1))
    assert torch.cat(lengths).max() > 1.5, "the ball would have them within 1"
    # To a pair loss only the direction of what is outside of the ball counts.
    embeddings, labels = torch.randn(4, 6), torch.tensor([0, 0, 1, 2])
    value = state.method.loss(state, embeddings, labels, None)
    with torch.no_grad():
        vectors = state.method.bank.vectors
        vectors.div_(vectors.norm(dim=2, keepdim=True).clamp_min(1.0))
    torch.testing.assert_close(value, state.method.loss(state, embeddings, labels, None))


@pytest.mark.parametrize("best", [False, True])
def test_a_problem_moves_away_from_the_proxies_of_its_best_evaluation_if_asked(
    tiny, tmp_path, scripted, monkeypatch, best
):
    """Evaluations every 2 steps, patience 2: problem 1 is best at step 2 and ends at step 6."""
    scripted([0.0, 0.0, 0.30, 0.20, 0.20])
    held, at_step = [], {}
    genuine = ccp.greedy_k_center
    monkeypatch.setattr(ccp, "greedy_k_center", lambda *args, **rest: held.append(args[1]) or genuine(*args, **rest))

    class Watch(Observer):
        def on_evaluation(self, state, row):
            vectors = state.method.bank.vectors.detach()
            at_step[state.step] = vectors / vectors.norm(dim=2, keepdim=True).clamp_min(1.0)

    given = ["method.name=ccp", "method.patience=2", "method.proxies_per_class=2", "method.pool_size=3"]
    state = tiny(*given, f"method.best_proxies={str(best).lower()}", "training.max_steps=6")
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Watch())
    torch.testing.assert_close(held[1], at_step[2 if best else 6])
    assert not torch.equal(at_step[2], at_step[6])
    assert state.method._best_proxies is None, "the next problem has a best of its own"


def test_the_options_of_the_released_code_go_on_bit_for_bit(tiny, tmp_path):
    overrides = ["method.name=ccp", "method.pool=augmented", "method.raw_proxies=true", "method.best_proxies=true"]
    overrides += ["method.patience=2", "method.proxies_per_class=2", "method.pool_size=3", "training.max_steps=14"]
    overrides += ["encoder.head_init=glorot", "encoder.head_bias=false", "encoder.freeze_batch_norm_affine=true"]
    whole, resumed = whole_and_resumed(tiny, [*overrides, *AUGMENTED], tmp_path, stop_at=5)
    assert len(whole.method.events) >= 2
    assert equal(weights(whole), weights(resumed))
    assert torch.equal(whole.method.bank.vectors, resumed.method.bank.vectors)
    assert whole.method.events == resumed.method.events


def test_a_plateau_counts_anew_in_every_problem(tiny, tmp_path, scripted):
    """Patience 3; the rate is halved by the second evaluation without improvement, 2e-4 at least; one every 2 steps.

    By hand, as each problem compares with its own best: .9 .8 .8 (halved) .8 → problem 2; .1 .2 .3 .4 rise, far below
    the .9 of before, and the rate stays; .3 .3 (halved) .3 → problem 3; .2 .1 .1 (to the floor, not to 1.25e-4).
    """
    scores = [0.9, 0.8, 0.8, 0.8, 0.1, 0.2, 0.3, 0.4, 0.3, 0.3, 0.3, 0.2, 0.1, 0.1]
    scripted([0.0, 0.0, *scores])
    given = ["method.name=ccp", "method.patience=3", "method.proxies_per_class=2", "training.proxy_lr_multiplier=10"]
    plateau = ["training.schedule=plateau", "training.lr_decay_every=1", "training.min_learning_rate=2e-4"]
    state = tiny(*given, *plateau, "training.max_steps=28")
    rates = []

    class Watch(Observer):
        def on_step(self, state, loss, images):
            if state.step % 2 == 0:
                rates.append([group["lr"] for group in state.optimiser.param_groups])

    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Watch())
    rates.append([group["lr"] for group in state.optimiser.param_groups])
    assert [(e["step"], e["number"]) for e in state.method.events] == [(0, 1), (8, 2), (22, 3)]
    wanted = [1e-3] * 3 + [5e-4] * 7 + [2.5e-4] * 4 + [2e-4]
    names = [group["name"] for group in state.optimiser.param_groups]
    for name, seen in zip(names, np.array(rates).T, strict=True):
        np.testing.assert_allclose(seen, np.array(wanted) * (10 if name == "proxies" else 1), err_msg=name)
