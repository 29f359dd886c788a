"""Proxy-ISA against a slow version with lists and loops, over a whole small training run."""

import math
from collections import deque

import pytest
import torch
from tests.losses.similarity_weights import similarity_weights
from torch.nn.functional import normalize

from nearkin.losses import ProxyAnchor, ProxyISA


class SlowISA:
    """Section 3 and algorithm 1 of the paper, one thing at a time.

    Algorithm 1 asks whether the filter is on for the weights of positives and for what is left out of the memory, not
    for the weights of negatives.
    """

    def __init__(self, classes, *, memory_size, volume, h=0.15, k=0.9, lam=0.1, tau=1.5, alpha=32.0, delta=0.1):
        self.classes, self.volume, self.h, self.k, self.lam, self.tau = classes, volume, h, k, lam, tau
        self.alpha, self.delta = alpha, delta
        self.n = [0] * classes
        self.s_avg = [0.0] * classes
        self.memory = deque(maxlen=memory_size)
        self.memory_on = self.filter_on = False

    def state(self, c):
        beta = (self.volume - 1) / self.volume
        effective = (1 - beta ** self.n[c]) / (1 - beta)
        nu = 1 / (1 + math.log(1 + effective))
        learned = self.h * self.s_avg[c]
        sigma = 1 + (1 + math.exp(-self.tau)) * (nu - 1) / (1 + math.exp(self.volume - effective - self.tau))
        eta = (1 + self.k * (1 - learned)) * nu + self.lam
        return effective, learned, sigma, eta

    def knows(self, c):
        return any(label == c for _, label in self.memory)

    def positive_weight(self, s, c):
        if not (self.filter_on and self.knows(c)):
            return 1.0
        _, learned, sigma, eta = self.state(c)
        return 1 + sigma if learned - eta <= s <= learned else sigma

    def negative_weight(self, s, c):
        if not self.knows(c):
            return 1.0
        effective, learned, _, eta = self.state(c)
        return 1 / max(1.0, effective) if s < learned - eta else 1.0

    def loss(self, embeddings, labels, proxies):
        z, p = normalize(embeddings), normalize(proxies)
        pull, pull_norm, push, push_norm = 0.0, 0.0, 0.0, 0.0
        for c in range(self.classes):
            total, weights = 1.0, []
            for i in (i for i, y in enumerate(labels) if y == c):
                s = z[i] @ p[c]
                weights.append(self.positive_weight(s.item(), c))
                total = total + torch.exp(weights[-1] * self.alpha * (self.delta - s))
            if weights:
                pull, pull_norm = pull + torch.log(total), pull_norm + sum(weights) / len(weights)
            total, weights = 1.0, []
            for i in (i for i, y in enumerate(labels) if y != c):
                s = z[i] @ p[c]
                weights.append(self.negative_weight(s.item(), c))
                total = total + torch.exp(weights[-1] * self.alpha * (s + self.delta))
            push, push_norm = push + torch.log(total), push_norm + sum(weights) / len(weights)
        return pull / pull_norm + push / push_norm

    def after(self, embeddings, labels, proxies):
        """Returns how many samples were outliers."""
        z, p = normalize(embeddings.detach()), normalize(proxies.detach())
        clean = []
        for i, c in enumerate(labels):
            _, learned, _, eta = self.state(c)
            if not (self.filter_on and self.knows(c) and (z[i] @ p[c]).item() < learned - eta):
                clean.append((z[i], c))
        for _, c in clean:
            self.n[c] += 1
        if self.memory_on:
            self.memory.extend(clean)
            for c in set(labels):
                own = [(m @ p[c]).item() for m, label in self.memory if label == c]
                if own:
                    self.s_avg[c] = sum(own) / len(own)
        return len(labels) - len(clean)


def batches(steps):
    """Classes 0 to 3 around their centres, with a sample now and then on the wrong side; class 4 only at times."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    for step in range(steps):
        labels = torch.randint(4, (7,), generator=generator)
        if step in (7, 30):
            labels[2] = 4
        spread = 1.5 if step % 3 else 0.2
        embeddings = centres[labels] + spread * torch.randn(7, 6, generator=generator, dtype=torch.float64)
        if step % 4 == 3:
            embeddings[0] = -centres[labels[0]]
        yield embeddings, labels


def test_a_training_run_equals_the_slow_reference_at_every_step():
    torch.manual_seed(0)
    loss = ProxyISA(5, 6, memory_size=40, volume=8.0).double()
    slow = SlowISA(5, memory_size=40, volume=8.0)
    proxies = loss.bank.vectors
    met = {"outlier": 0, "informative": 0, "forgotten class": False}
    met |= {"light negative before the filter": 0, "light negative after it": 0}
    for step, (embeddings, labels) in enumerate(batches(40)):
        if step in (5, 12):
            loss.begin_epoch(1 if step == 5 else 2)
            slow.memory_on, slow.filter_on = loss.weighting.memory_on, loss.weighting.filter_on
        y = labels.tolist()
        embeddings.requires_grad_()

        similarities = (normalize(embeddings) @ normalize(proxies.squeeze(1)).T).detach()
        weights = loss.weighting.weights(similarities, labels)
        assert (weights is None) == (not slow.memory_on)
        if weights is not None:
            for i, c in enumerate(y):
                positive = slow.positive_weight(similarities[i, c].item(), c)
                assert weights.positive[i].item() == pytest.approx(positive, abs=1e-9)
                met["informative"] += positive > 1
                for other in set(range(5)) - {c}:
                    negative = slow.negative_weight(similarities[i, other].item(), other)
                    assert weights.negative[i, other].item() == pytest.approx(negative, abs=1e-9)
                    met["light negative after it" if slow.filter_on else "light negative before the filter"] += (
                        negative < 1
                    )

        expected = slow.loss(embeddings, y, proxies.squeeze(1))
        expected_gradients = torch.autograd.grad(expected, (embeddings, proxies))
        value = loss(embeddings, labels)
        gradients = torch.autograd.grad(value, (embeddings, proxies))
        assert value.item() == pytest.approx(expected.item(), abs=1e-9)
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)

        met["outlier"] += slow.after(embeddings, y, proxies.squeeze(1))
        met["forgotten class"] |= slow.n[4] > 0 and slow.memory_on and not slow.knows(4)
        assert loss.weighting.counts.tolist() == slow.n
        assert loss.weighting.average.tolist() == pytest.approx(slow.s_avg, abs=1e-9)
        remembered = loss.weighting.memory_labels[:-1] < 5
        start = loss.weighting.pointer.item()
        order = torch.arange(40).roll(-start)
        order = order[remembered[order]]
        assert loss.weighting.memory_labels[order].tolist() == [label for _, label in slow.memory]
        if slow.memory:
            torch.testing.assert_close(loss.weighting.memory[order], torch.stack([m for m, _ in slow.memory]))
        with torch.no_grad():
            proxies -= 0.2 * gradients[1]
    assert met["forgotten class"]
    assert all(met.values()), f"the run never met {[kind for kind, seen in met.items() if not seen]}"


def test_hand_worked_loss():
    loss = ProxyISA(2, 2, alpha=1.0, margin=0.0, volume=2.0, memory_size=4).double()
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.eye(2)[:, None])
    loss.weighting.counts.fill_(2)
    loss.weighting.average.fill_(0.8)
    loss.weighting.in_memory.fill_(1)
    loss.weighting.filter_on = True
    embeddings = torch.tensor([[1.0, 0.0], [0.8, -0.6], [-1.0, 0.0]], dtype=torch.float64)
    # E = 1.5, L = 0.12, L − η = −0.915140, σ = 0.572440 (worked in test_informative_samples.py).
    # Positives: s = 1 is easy, ω+ = σ; s = −0.6 and s = 0 are informative, ω+ = 1 + σ:
    #   ln(1 + e^(−0.572440)) = 0.447341; ln(1 + e^(1.572440 · 0.6) + e^0) = ln 4.568865 = 1.519265
    #   (0.447341 + 1.519265)/(0.572440 + 1.572440) = 0.916884
    # Negatives of class 0: s = 0.8 with ω− = 1, s = −1 with ω− = 2/3; of class 1: s = 0 with ω− = 1:
    #   ln(1 + e^0.8 + e^(−2/3)) = ln 3.738958 = 1.318807; ln 2 = 0.693147; (1.318807 + 0.693147)/(5/6 + 1) = 1.097430
    assert loss(embeddings, torch.tensor([0, 1, 1])).item() == pytest.approx(0.916884 + 1.097430, abs=2e-6)


def test_with_the_memory_off_it_is_proxy_anchor():
    torch.manual_seed(0)
    loss, plain = ProxyISA(6, 4), ProxyAnchor(6, 4)
    plain.bank.load_state_dict(loss.bank.state_dict())
    for _ in range(3):
        embeddings, labels = torch.randn(9, 4, requires_grad=True), torch.randint(6, (9,))
        ours, theirs = loss(embeddings, labels), plain(embeddings, labels)
        assert torch.equal(ours, theirs)
        gradients = torch.autograd.grad(ours, (embeddings, loss.bank.vectors))
        expected = torch.autograd.grad(theirs, (embeddings, plain.bank.vectors))
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def filtered(seed=0):
    """A loss with the filter on and some history, and a batch."""
    torch.manual_seed(seed)
    loss = ProxyISA(4, 5, volume=3.0, memory_size=30, alpha=4.0).double()
    for epoch in range(3):
        loss.begin_epoch(epoch)
        loss(torch.randn(10, 5, dtype=torch.float64), torch.arange(10) % 4)
    return loss, torch.randn(8, 5, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])


def test_similarity_weights_are_equation_5_and_its_weighted_form():
    """Equation 5 as it must read (the printed negative case lost its numerator), and the same of equation 13.

    Equation 18's P⁺(i) is the share in it: w = α/|C⁺| · P⁺(i), and α ω/Σω̄ · Q(i) once pairs are weighted.
    """
    loss, embeddings, labels = filtered()
    similarities = loss.class_similarities(embeddings).detach()
    for filter_on in (False, True):
        loss.weighting.filter_on = filter_on
        weights = loss.weighting.weights(similarities, labels)
        positive = torch.ones(8, dtype=torch.float64) if weights is None else weights.positive
        negative = torch.ones(8, 4, dtype=torch.float64) if weights is None else weights.negative
        means = [positive[labels == c].mean().item() for c in range(3)]
        other_means = [negative[labels != c, c].mean().item() for c in range(4)]
        expected = torch.zeros(8, 4, dtype=torch.float64)
        for c in range(4):
            pulls = {i: math.exp(4 * positive[i] * (0.1 - similarities[i, c])) for i in range(8) if labels[i] == c}
            pushes = {i: math.exp(4 * negative[i, c] * (0.1 + similarities[i, c])) for i in range(8) if labels[i] != c}
            for i, e in pulls.items():
                expected[i, c] = 4 * positive[i] / sum(means) * e / (1 + sum(pulls.values()))
            for i, e in pushes.items():
                expected[i, c] = 4 * negative[i, c] / sum(other_means) * e / (1 + sum(pushes.values()))
        torch.testing.assert_close(similarity_weights(loss, embeddings, labels), expected, rtol=1e-9, atol=1e-9)


def test_explaining_and_evaluating_change_nothing():
    loss, embeddings, labels = filtered()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    loss.weighting.diagnostics()
    loss.eval()
    value = loss(embeddings, labels)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
    loss.weighting.filter_on = False
    assert loss(embeddings, labels) != value


def test_diagnostics():
    loss, embeddings, labels = filtered()
    report = loss.weighting.diagnostics()
    per_class = ("effective_number", "learned_similarity", "search_length", "in_memory")
    assert all(report[name].shape == (4,) for name in per_class)
    assert report["in_memory"].sum() <= 20
    assert report["easy"] + report["informative"] + report["outlier"] == pytest.approx(1.0)
    own = loss.class_similarities(embeddings).detach()[torch.arange(8), labels]
    learned, bottom = report["learned_similarity"], report["learned_similarity"] - report["search_length"]
    loss(embeddings, labels)
    after = loss.weighting.diagnostics()
    assert after["easy"] == pytest.approx((own > learned[labels]).double().mean().item())
    assert after["outlier"] == pytest.approx((own < bottom[labels]).double().mean().item())
    assert (after["effective_number"] >= report["effective_number"]).all()


def test_proxies_are_the_only_parameters_and_options_reach_the_weighting():
    loss = ProxyISA(3, 4, volume=7.0, hardness=0.2, sensitivity=0.3, search_margin=0.4, decay=0.5, memory_size=6)
    assert [name for name, _ in loss.named_parameters()] == ["bank.vectors"]
    isa = loss.weighting
    stored = (isa.volume, isa.hardness, isa.sensitivity, isa.search_margin, isa.decay, isa.memory_size)
    assert stored == (7.0, 0.2, 0.3, 0.4, 0.5, 6)
