"""ISA's weights as a piece: the formulas, the memory, and the classes about which nothing is known."""

import copy
import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from nearkin.losses import InformativeSampleWeights
from nearkin.losses.mpa import MultiProxyAnchor
from nearkin.losses.proxy_nca import ProxyNCA

SIZES = {"num_classes": 3, "dim": 2}


def known(weighting, *, counts, average):
    """A weighting that has seen ``counts`` samples and has one of each class in memory."""
    weighting.counts.copy_(torch.tensor(counts))
    weighting.average.copy_(torch.tensor(average))
    weighting.in_memory.fill_(1)
    weighting.memory_on = weighting.filter_on = True
    return weighting


def cosine_to(proxies):
    return lambda embeddings, labels: (embeddings * (proxies if labels is None else proxies[labels])).sum(1)


def test_hand_worked_thresholds_and_weights():
    weighting = known(
        InformativeSampleWeights(**SIZES, volume=2.0, memory_size=4).double(), counts=[2, 0, 1], average=[0.8, 0.8, 0.0]
    )
    at = weighting.diagnostics()
    # β = 1/2: E(2) = (1 − 1/4)/(1/2) = 1.5, E(0) = 0, E(1) = 1.
    assert at["effective_number"].tolist() == pytest.approx([1.5, 0.0, 1.0], abs=1e-12)
    # L = 0.15 · 0.8 = 0.12.
    assert at["learned_similarity"].tolist() == pytest.approx([0.12, 0.12, 0.0], abs=1e-7)
    # ν(1.5) = 1/(1 + ln 2.5) = 0.521841, η = (1 + 0.9 · 0.88) · 0.521841 + 0.1 = 1.035140; ν(0) = 1, η = 1.892;
    # ν(1) = 1/(1 + ln 2) = 0.590616, η = 1.9 · 0.590616 + 0.1 = 1.222171.
    assert at["search_length"].tolist() == pytest.approx([1.035140, 1.892, 1.222171], abs=1e-6)
    # σ = 1 + 1.223130 · (0.521841 − 1)/(1 + e^(2 − 1.5 − 1.5)) = 1 − 0.584850/1.367879 = 0.572440.
    # Sample 0 (s = 0.5 > L) is easy: ω+ = σ. Sample 1 (s = 0.12 − 1) is informative: 1 + σ. Sample 2 (s = −1 < L − η =
    # −0.915140) is an outlier: σ. ω− = 1/1.5 where s < L − η.
    similarities = torch.tensor([[0.5, -1.0, -1.0], [-0.88, -1.0, -1.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
    weights = weighting.weights(similarities, torch.tensor([0, 0, 0]))
    assert weights.positive.tolist() == pytest.approx([0.572440, 1.572440, 0.572440], abs=1e-6)
    assert weights.negative[:, 0].tolist() == pytest.approx([1.0, 1.0, 2 / 3], abs=1e-12)
    assert weights.negative[:, 1:].eq(1.0).all()


def test_limits_of_the_paper():
    weighting = known(InformativeSampleWeights(**SIZES).double(), counts=[1, 10**6, 60], average=[0.0, 0.0, 0.0])
    at = weighting.diagnostics()
    bound = 1 / (1 + math.log(101))
    # Equation 9: E tends to V. Section 3.4: σ tends to ν = 1/(1 + ln(1 + V)) and starts at about 1.
    assert at["effective_number"].tolist() == pytest.approx([1.0, 100.0, 100 * (1 - 0.99**60)], abs=1e-9)
    easy = torch.ones(3, 3, dtype=torch.float64)
    assert weighting.weights(easy, torch.arange(3)).positive.tolist()[:2] == pytest.approx([1.0, bound], abs=1e-9)
    assert at["search_length"][1].item() == pytest.approx(1.9 * bound + 0.1, abs=1e-9)


def test_both_ends_of_the_informative_range_belong_to_it():
    weighting = known(InformativeSampleWeights(**SIZES, volume=2.0).double(), counts=[3] * 3, average=[0.4] * 3)
    at = weighting.diagnostics()
    top = at["learned_similarity"][0].item()
    bottom = top - at["search_length"][0].item()
    own = [bottom - 1e-12, bottom, top, top + 1e-12]
    similarities = torch.tensor(own, dtype=torch.float64)[:, None].expand(-1, 3)
    positive, negative = weighting.weights(similarities, torch.zeros(4, dtype=torch.int64))
    assert (positive > 1).tolist() == [False, True, True, False]
    assert (negative[:, 1] < 1).tolist() == [True, False, False, False]


def test_what_is_weighed_before_the_memory_before_the_filter_and_then():
    weighting = known(InformativeSampleWeights(**SIZES), counts=[200] * 3, average=[0.9] * 3)
    similarities = torch.full((3, 3), -0.9)
    weighting.memory_on = weighting.filter_on = False
    assert weighting.weights(similarities, torch.arange(3)) is None
    weighting.memory_on = True
    weighting.in_memory.copy_(torch.tensor([0, 5, 5]))
    for weighting.filter_on in (False, True):
        positive, negative = weighting.weights(similarities, torch.arange(3))
        assert positive[0] == 1
        assert (positive[1:] < 1).tolist() == [weighting.filter_on] * 2
        assert negative[:, 0].eq(1).all(), "nothing of class 0 is in memory"
        assert (negative[:, 1:] < 1).all()


@pytest.mark.parametrize("as_released", [False, True])
def test_the_filter_acts_on_a_class_of_which_enough_samples_were_seen(as_released):
    options = {**SIZES, "filter_after": 400, "as_released": as_released}
    weighting = known(InformativeSampleWeights(**options), counts=[399, 400, 600], average=[0.9] * 3)
    positive, negative = weighting.weights(torch.full((3, 3), -0.9), torch.arange(3))
    assert positive[0] == 1
    assert (positive[1:] < 1).all()
    assert negative[:, 0].eq(1).all()
    assert (negative[:, 1:] < 1).all()
    embeddings, proxies = -torch.ones(3, 2), torch.ones(3, 2)
    weighting.update(embeddings, torch.arange(3), embeddings @ proxies.T, cosine_to(proxies))
    assert weighting.counts.tolist() == [400, 400, 600], "what is below all of them is an outlier of the last two alone"


def test_outliers_are_neither_counted_nor_remembered():
    weighting = known(InformativeSampleWeights(**SIZES, memory_size=5), counts=[200] * 3, average=[0.9] * 3)
    weighting.in_memory[2] = 0  # nothing is known about class 2, so it has no outliers
    proxies = torch.eye(2)[[0, 1, 0]]
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 2])
    weighting.update(embeddings, labels, embeddings @ proxies.T, cosine_to(proxies))
    assert weighting.counts.tolist() == [201, 201, 201]
    assert weighting.memory_labels.tolist() == [0, 1, 2, 3, 3, 3]
    assert torch.equal(weighting.memory[:3], embeddings[[0, 2, 3]])
    assert weighting.pointer.item() == 3
    assert weighting.average.tolist() == [1.0, 1.0, -1.0]
    # Of the three samples of classes in memory two were easy and one an outlier.
    shares = [weighting.diagnostics()[kind] for kind in ("easy", "informative", "outlier")]
    assert shares == pytest.approx([2 / 3, 0.0, 1 / 3], abs=1e-6)


def test_the_memory_takes_outliers_until_the_filter_is_on():
    weighting = known(InformativeSampleWeights(**SIZES, memory_size=5), counts=[200] * 3, average=[0.9] * 3)
    weighting.memory_on, weighting.filter_on = True, False
    embeddings, proxies = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.eye(2)[[0, 1, 0]]
    weighting.update(embeddings, torch.tensor([0, 0]), embeddings @ proxies.T, cosine_to(proxies))
    assert weighting.counts.tolist() == [202, 200, 200]
    assert weighting.memory_labels.tolist() == [0, 0, 3, 3, 3, 3]


def test_without_the_memory_only_the_counts_change():
    weighting = InformativeSampleWeights(**SIZES, memory_size=5)
    before = copy.deepcopy(weighting.state_dict())
    weighting.update(torch.eye(2), torch.tensor([1, 1]), torch.eye(2, 3), cosine_to(torch.eye(3, 2)))
    changed = {name for name, value in weighting.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"counts"}
    assert weighting.counts.tolist() == [0, 2, 0]


def test_of_a_batch_larger_than_the_memory_the_last_samples_stay_in_order():
    weighting = InformativeSampleWeights(num_classes=10, dim=2, memory_size=4)
    weighting.memory_on = True
    embeddings = torch.nn.functional.normalize(torch.randn(10, 2))
    for labels in (torch.arange(3), torch.arange(10)):
        batch = embeddings[labels]
        weighting.update(batch, labels, torch.zeros(len(labels), 10), cosine_to(embeddings))
    start = weighting.pointer.item()
    assert weighting.memory_labels[:4].roll(-start).tolist() == [6, 7, 8, 9]
    assert torch.equal(weighting.memory[:4].roll(-start, 0), embeddings[6:])
    assert weighting.in_memory.tolist() == [0] * 6 + [1] * 4


def test_the_mean_may_be_taken_before_a_linear_similarity():
    torch.manual_seed(0)
    entry_by_entry, at_once = (InformativeSampleWeights(6, 4, memory_size=15).double() for _ in range(2))
    proxies = torch.randn(6, 4, dtype=torch.float64)
    for step in range(5):
        embeddings, labels = torch.randn(7, 4, dtype=torch.float64), torch.randint(5, (7,))
        for weighting, linear in ((entry_by_entry, False), (at_once, True)):
            weighting.begin_epoch(step)
            weighting.update(embeddings, labels, embeddings @ proxies.T, cosine_to(proxies), linear=linear)
        torch.testing.assert_close(at_once.average, entry_by_entry.average, rtol=1e-12, atol=1e-12)
    assert at_once.average.unique().numel() > 3


def test_a_class_that_leaves_the_memory_is_unknown_again():
    weighting = InformativeSampleWeights(**SIZES, memory_size=2)
    weighting.begin_epoch(2)
    for label in (0, 1, 1):
        weighting.update(torch.ones(1, 2), torch.tensor([label]), torch.ones(1, 3), lambda z, y: z[:, 0])
    assert weighting.in_memory.tolist() == [0, 2, 0]
    assert weighting.weights(torch.full((1, 3), -1.0), torch.tensor([0])).positive.tolist() == [1.0]


def test_as_released_negatives_are_weighed_from_the_first_step_with_L_at_1():
    weighting = InformativeSampleWeights(**SIZES, as_released=True)
    assert weighting.memory_size == 55_000
    # n = 0: E = 0, ν = 1, L − η = 1 − 1 − 0.1; what lies below counts 1/max(1, 0) = 1.
    assert weighting.weights(torch.full((1, 3), -0.5), torch.tensor([2])).negative.tolist() == [[1.0] * 3]
    weighting.counts.fill_(200)
    # L = 1 and E = 100 (1 − 0.99²⁰⁰) = 86.60, ν = 1/(1 + ln 87.60) = 0.182713, L − η = 1 − 0.182713 − 0.1 = 0.717287.
    similarities = torch.tensor([[0.7172, 0.7173, 1.0]])
    positive, negative = weighting.weights(similarities, torch.tensor([2]))
    assert positive.tolist() == [1.0]
    assert negative.tolist()[0] == pytest.approx([1 / 86.602, 1.0, 1.0], abs=1e-6)
    weighting.begin_epoch(2)
    assert (weighting.memory_on, weighting.filter_on) == (True, False)
    weighting.update(torch.ones(1, 2), torch.tensor([1]), torch.ones(1, 3), lambda z, y: z[:, 0] * 0.6)
    assert weighting.diagnostics()["learned_similarity"].tolist() == pytest.approx([1.0, 0.09, 1.0])


@pytest.mark.parametrize(
    ("options", "memory", "filtering"),
    [
        ({}, 1, 2),
        ({"as_released": True}, 2, 3),
        ({"as_released": True, "memory_from": 1}, 1, 3),
        ({"memory_from": 0, "filter_from": 5}, 0, 5),
    ],
)
def test_the_epochs_at_which_memory_and_filter_go_on(options, memory, filtering):
    weighting = InformativeSampleWeights(**SIZES, **options)
    for epoch in range(7):
        weighting.begin_epoch(epoch)
        assert (weighting.memory_on, weighting.filter_on) == (epoch >= memory, epoch >= filtering)


def test_default_memory_is_bounded():
    sizes = [InformativeSampleWeights(num_classes, 1).memory_size for num_classes in (10, 20_000)]
    assert sizes == [500, 55_000]


@pytest.mark.parametrize(
    "options, named",
    [({"memory_size": 0}, "memory_size"), ({"volume": 1.0}, "volume"), ({"hardness": 0.0}, "hardness")],
)
def test_impossible_options_are_refused_by_name(options, named):
    with pytest.raises(ValueError, match=f"{named} must be .* got"):
        InformativeSampleWeights(**SIZES, **options)


def test_begin_epoch_switches_memory_then_filter_and_state_dict_keeps_the_switches():
    weighting = InformativeSampleWeights(**SIZES)
    switches = []
    for epoch in range(4):
        weighting.begin_epoch(epoch)
        other = InformativeSampleWeights(**SIZES)
        other.load_state_dict(weighting.state_dict())
        switches.append((other.memory_on, other.filter_on))
    assert switches == [(False, False), (True, False), (True, True), (True, True)]


def test_nothing_reads_a_value_back_to_the_host():
    class Recorder(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            called.add(function.__name__)
            return function(*args, **(kwargs or {}))

    called: set[str] = set()
    weighting = InformativeSampleWeights(**SIZES)
    weighting.begin_epoch(2)
    labels = torch.tensor([0, 0, 1, 1])
    with Recorder():
        weighting.weights(torch.zeros(4, 3), labels)
        weighting.update(torch.ones(4, 2), labels, torch.zeros(4, 3), cosine_to(torch.ones(3, 2)))
    assert "index_copy_" in called
    waiting = {"item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "unique", "bincount", "any", "all"}
    assert not called & (waiting | {"__bool__", "__int__", "__float__", "__index__"})


@pytest.mark.parametrize(
    "build",
    [
        lambda w: MultiProxyAnchor(4, 6, proxies_per_class=3, weighting=w),
        lambda w: ProxyNCA(4, 6, weighting=w),
    ],
)
def test_other_losses_take_the_weighting(build):
    torch.manual_seed(0)
    weighting = InformativeSampleWeights(4, 6, memory_size=20, volume=2.0).double()
    loss, plain = build(weighting).double(), build(None).double()
    plain.load_state_dict({name: value for name, value in loss.state_dict().items() if "weighting" not in name})
    batches = [(torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 4) for _ in range(4)]
    loss.begin_epoch(1)
    for embeddings, labels in batches:
        assert loss(embeddings, labels).item() == pytest.approx(plain(embeddings, labels).item(), abs=1e-12)
    # S_avg is the mean class similarity of the last 20 embeddings, 5 of each class, with all proxies of the class.
    remembered = torch.cat([embeddings for embeddings, _ in batches])[-20:]
    owners = torch.cat([labels for _, labels in batches])[-20:]
    similarities = loss.class_similarities(remembered).detach()
    for c in range(4):
        own = [similarities[i, c].item() for i in range(20) if owners[i] == c]
        assert weighting.average[c].item() == pytest.approx(sum(own) / 5, abs=1e-9)
    loss.begin_epoch(2)
    embeddings, labels = batches[0]
    assert abs(loss(embeddings, labels).item() - plain(embeddings, labels).item()) > 1e-3


@pytest.mark.parametrize(
    ("penalty", "wanted"),
    [("nu", [0.521841, 1.521841]), ("effective", [1 / 1.5, 1 + 1 / 1.5]), ("none", [1, 2]), ("uniform", [1, 1])],
)
def test_other_penalties_of_positives_as_in_the_papers_table_3(penalty, wanted):
    weighting = known(
        InformativeSampleWeights(**SIZES, volume=2.0, memory_size=4, positive_penalty=penalty).double(),
        counts=[2, 0, 1],
        average=[0.8, 0.8, 0.0],
    )
    # With β = 1/2 and n = 2: E = 1.5 and ν = 1/(1 + ln 2.5). The first sample is easy, the second informative.
    similarities = torch.tensor([[0.5, -1.0, -1.0], [-0.88, -1.0, -1.0]], dtype=torch.float64)
    weights = weighting.weights(similarities, torch.tensor([0, 0]))
    assert weights.positive.tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("penalty", "wanted"), [("effective", 1 / 1.5), ("none", 1.0)])
def test_easy_negatives_count_less_unless_their_penalty_is_off(penalty, wanted):
    weighting = known(
        InformativeSampleWeights(**SIZES, volume=2.0, memory_size=4, negative_penalty=penalty).double(),
        counts=[2, 2, 2],
        average=[0.8, 0.8, 0.8],
    )
    # L = 0.12 and η = 1.035 with E = 1.5: the first negative is easy, the second is not. Positives are as they were.
    similarities = torch.tensor([[0.5, -0.95, -0.9]], dtype=torch.float64)
    weights = weighting.weights(similarities, torch.tensor([0]))
    assert weights.negative[0, 1:].tolist() == pytest.approx([wanted, 1.0], abs=1e-6)
    assert weights.positive.item() == pytest.approx(0.572440, abs=1e-6)


@pytest.mark.parametrize("option", [{"positive_penalty": "mu"}, {"negative_penalty": "nu"}])
def test_an_unknown_penalty_is_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name} must be .*got '{value}'"):
        InformativeSampleWeights(**SIZES, **option)
