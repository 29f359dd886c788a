"""VCPA: the Newton steps against autograd, and what the loss does with their result."""

import copy
import itertools
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import normalize

from nearkin.losses import MultiProxyAnchor, ProxyAnchor, VariationalProxyAnchor, vcpa


def newton_update(mu, sigma, embeddings, labels, noise, **options):
    """The Newton steps; classes of one proxy may leave its axis out."""
    if mu.ndim == 3:
        return vcpa.newton_update(mu, sigma, embeddings, labels, noise, **options)
    noise = (epsilon.unsqueeze(1) for epsilon in noise)
    mu, sigma = vcpa.newton_update(mu.unsqueeze(1), sigma.unsqueeze(1), embeddings, labels, noise, **options)
    return mu.squeeze(1), sigma.squeeze(1)


def proxy_anchor(similarities, labels, *, alpha, margin, positive_norm="all"):
    """Equation 4 of the paper with loops, both sums divided by the classes, or the first by those that are there."""
    classes = similarities.shape[1]
    loss = 0.0
    for c in range(classes):
        pull = push = torch.ones((), dtype=similarities.dtype)
        for i, y in enumerate(labels.tolist()):
            if y == c:
                pull = pull + torch.exp(alpha * (margin - similarities[i, c]))
            else:
                push = push + torch.exp(alpha * (similarities[i, c] + margin))
        divisor = classes if positive_norm == "all" else len(set(labels.tolist()))
        loss = loss + torch.log(pull) / divisor + torch.log(push) / classes
    return loss


def newton_by_autograd(mu, sigma, embeddings, labels, noise, *, tau, sigma_min, **of_loss):
    """Algorithm 1 with gradients and Hessian diagonals from autograd, the proxies' lengths held constant."""
    u = normalize(embeddings)
    start = Normal(mu, sigma)
    for epsilon in noise:
        lengths = (mu + sigma * epsilon).norm(dim=1)

        def objective(mu, sigma, epsilon=epsilon, lengths=lengths):
            similarities = u @ (mu + sigma * epsilon).T / lengths
            kl = kl_divergence(Normal(mu, sigma), start).sum()
            return tau * kl + proxy_anchor(similarities, labels, **of_loss)

        both = (mu, sigma)
        gradients = torch.autograd.functional.jacobian(objective, both)
        hessians = torch.autograd.functional.hessian(objective, both)
        curvatures = [hessians[k][k].reshape(mu.numel(), -1).diagonal().view_as(mu) for k in range(2)]
        mu = mu - gradients[0] / curvatures[0]
        sigma = (sigma - gradients[1] / curvatures[1]).clamp_min(sigma_min)
    return mu, sigma


def problem(seed=0, *, classes=3, dim=4, samples=7, steps=4, per_class=None):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (classes, dim) if per_class is None else (classes, per_class, dim)
    mu, sigma = randn(*shape), randn(*shape).exp()
    return mu, sigma, 5 * randn(samples, dim), torch.arange(samples) % (classes - 1), randn(steps, *shape)


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.01, "alpha": 32.0, "margin": 0.1, "sigma_min": 1e-5},
        {"tau": 1.0, "alpha": 2.0, "margin": 0.3, "sigma_min": 0.5},
        {"tau": 0.01, "alpha": 32.0, "margin": 0.1, "sigma_min": 1e-5, "positive_norm": "present"},
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_newton_steps_equal_autograd(seed, options):
    mu, sigma, embeddings, labels, noise = problem(seed)
    expected = newton_by_autograd(mu, sigma, embeddings, labels, noise, **options)
    given = mu.clone(), sigma.clone()
    result = newton_update(mu, sigma, embeddings, labels, noise, **options)
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert torch.equal(mu, given[0])
    assert torch.equal(sigma, given[1])


def test_hand_worked_newton_step():
    # C = 2, α = 1, δ = 0, τ = 1, μ = 0, σ = 1. For class 0, p̂ = e₁ of length 1: its sample e₁ has s = 1, the other 0.
    # w+ = e⁻¹/(1 + e⁻¹) = 0.268941, w− = 1/2; G+ = (0.268941, 0), G− = (0, 1/2), Q+ = G+, Q− = G−.
    # g = ½(G− − G+) = (−0.134471, 0.25); H = ½(0.268941 − 0.072329, 0.5 − 0.25) = (0.098306, 0.125).
    # μ = (0.134471/1.098306, −0.25/1.125) = (0.122435, −0.222222); σ₁ = 1 + 0.134471/(2 + 0.098306) = 1.064085, σ₂ = 1.
    eye = torch.eye(2, dtype=torch.float64)
    mu, sigma = newton_update(
        0 * eye, torch.ones_like(eye), eye, torch.tensor([0, 1]), eye[None], tau=1.0, alpha=1.0, margin=0.0
    )
    assert mu[0].tolist() == pytest.approx([0.122435, -0.222222], abs=1e-6)
    assert sigma[0].tolist() == pytest.approx([1.064085, 1.0], abs=1e-6)
    assert torch.allclose(mu[1], mu[0].flip(0))


def test_the_papers_gradient_is_the_exact_one_but_for_its_radial_part():
    """The length of p̂ counts as constant, so g keeps the part along p̂ that the exact gradient does not have."""
    mu, sigma, embeddings, labels, noise = problem()
    tau = 1e6  # so that H is negligible beside τ/σ² and the step is −g σ²/τ
    moved, _ = newton_update(mu, sigma, embeddings, labels, noise[:1], tau=tau, alpha=2.0, margin=0.1)
    g = (mu - moved) * tau / sigma.square()
    proxies = (mu + sigma * noise[0]).requires_grad_()
    loss = proxy_anchor(normalize(embeddings) @ normalize(proxies).T, labels, alpha=2.0, margin=0.1)
    (exact,) = torch.autograd.grad(loss, proxies)
    direction = normalize(proxies.detach())
    radial = (g * direction).sum(1, keepdim=True) * direction
    torch.testing.assert_close(g - radial, exact, rtol=1e-4, atol=1e-6)
    assert radial.norm() > 0.01


def test_noise_may_come_one_step_at_a_time_and_its_shape_is_checked():
    mu, sigma, embeddings, labels, noise = problem()
    whole = newton_update(mu, sigma, embeddings, labels, noise)
    lazy = newton_update(mu, sigma, embeddings, labels, (epsilon for epsilon in noise))
    assert torch.equal(whole[0], lazy[0])
    with pytest.raises(ValueError, match=r"\[3, 1, 4\], got \[4, 1, 3\]"):
        newton_update(mu, sigma, embeddings, labels, noise.mT)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_nothing_overflows(scale):
    mu, sigma, embeddings, labels, noise = (x.float() if x.is_floating_point() else x for x in problem())
    noise[0] = -mu / sigma  # proxies of length 0
    for alpha in (32.0, 1000.0):
        result = newton_update(mu, sigma, scale * embeddings, labels, noise, alpha=alpha)
        assert all(torch.isfinite(part).all() for part in result)
        assert (result[1] >= 1e-5).all()


def test_a_heavier_kl_holds_the_proxies_back():
    mu, sigma, embeddings, labels, noise = problem()
    moves = [
        (newton_update(mu, sigma, embeddings, labels, noise, tau=tau)[0] - mu).norm().item()
        for tau in (1e-2, 1.0, 1e2, 1e9)
    ]
    assert moves == sorted(moves, reverse=True)
    assert moves[-1] < 1e-6 < moves[0]


def shares_by_loops(proxies, u, kind, gamma):
    """``a[c][i][k]`` of the similarities to the K proxies of a class, and the similarities."""
    classes, per_class, _ = proxies.shape
    shares, similarities = [], []
    for c in range(classes):
        rows = [[float(x @ p / p.norm()) for p in proxies[c]] for x in u]
        similarities.append(rows)
        if kind == "mean":
            shares.append([[1 / per_class] * per_class for _ in rows])
        elif kind == "max":
            shares.append([[float(s == max(row)) for s in row] for row in rows])
        else:
            powers = [[math.exp(s / gamma) for s in row] for row in rows]
            shares.append([[x / sum(row) for x in row] for row in powers])
    return shares, similarities


def slope_and_curvature_by_loops(proxies, u, labels, *, alpha, margin, kind, gamma, positive_norm="all"):
    """g and H of every proxy ``[C, K, D]``, from the formulas, one number at a time."""
    classes, per_class, dim = proxies.shape
    shares, similarities = shares_by_loops(proxies, u, kind, gamma)
    g, h = torch.zeros_like(proxies), torch.zeros_like(proxies)
    divisors = {+1: classes if positive_norm == "all" else len(set(labels.tolist())), -1: classes}
    for c in range(classes):
        whole = [
            sum(a * s for a, s in zip(*rows, strict=True)) for rows in zip(shares[c], similarities[c], strict=True)
        ]
        powers = {+1: {}, -1: {}}
        for i, y in enumerate(labels.tolist()):
            sign = +1 if y == c else -1
            powers[sign][i] = math.exp(alpha * (margin - sign * whole[i]))
        for k in range(per_class):
            length = float(proxies[c, k].norm())
            for d in range(dim):
                for sign, of_samples in powers.items():
                    total = 1 + sum(of_samples.values())
                    terms = [(power / total, shares[c][i][k], float(u[i, d])) for i, power in of_samples.items()]
                    first = sum(w * a * x for w, a, x in terms)
                    second = sum(w * a**2 * x**2 for w, a, x in terms)
                    g[c, k, d] -= sign * alpha / (divisors[sign] * length) * first
                    h[c, k, d] += alpha**2 / (divisors[sign] * length**2) * (second - first**2)
    return g, h


KINDS = ["softmax", "max", "mean"]


@pytest.mark.parametrize(("kind", "norm"), [*((kind, "all") for kind in KINDS), ("softmax", "present")])
def test_several_proxies_newton_steps_equal_loops(kind, norm):
    mu, sigma, embeddings, labels, noise = problem(per_class=3, steps=3)
    options = {"alpha": 8.0, "margin": 0.1, "gamma": 0.2, "positive_norm": norm}
    result = newton_update(mu, sigma, embeddings, labels, noise, tau=0.05, class_similarity=kind, **options)
    mean, deviation = mu.clone(), sigma.clone()
    for epsilon in noise:
        draw = mean + deviation * epsilon
        g, h = slope_and_curvature_by_loops(draw, normalize(embeddings), labels, kind=kind, **options)
        at = list(itertools.product(*map(range, mu.shape)))
        new = {}
        for c in at:
            m, s, e, m0, s0 = (float(t[c]) for t in (mean, deviation, epsilon, mu, sigma))
            step = (0.05 * (m - m0) / s0**2 + float(g[c])) / (0.05 / s0**2 + float(h[c]))
            slope = 0.05 * (s / s0**2 - 1 / s) + e * float(g[c])
            bend = 0.05 * (1 / s0**2 + 1 / s**2) + e**2 * float(h[c])
            new[c] = (m - step, max(s - slope / bend, 1e-5))
        for c in at:
            mean[c], deviation[c] = new[c]
    torch.testing.assert_close(result[0], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result[1], deviation, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["all", "present"])
def test_a_process_with_some_of_the_classes_takes_the_steps_of_all(norm):
    mu, sigma, embeddings, labels, noise = problem(per_class=3)
    whole = newton_update(mu, sigma, embeddings, labels, noise, positive_norm=norm)
    for own in (slice(0, 2), slice(2, len(mu))):
        place = {"first_class": own.start, "num_classes": len(mu), "positive_norm": norm}
        part = newton_update(mu[own], sigma[own], embeddings, labels, [each[own] for each in noise], **place)
        for found, expected in zip(part, whole, strict=True):
            torch.testing.assert_close(found, expected[own])


@pytest.mark.parametrize("kind", KINDS)
def test_several_proxies_slope_and_curvature_are_autograds_with_lengths_and_shares_held(kind):
    mu, sigma, embeddings, labels, noise = problem(per_class=3)
    u, draw = normalize(embeddings), mu + sigma * noise[0]
    lengths = draw.norm(dim=2)
    shares = torch.tensor(shares_by_loops(draw, u, kind, 0.2)[0], dtype=torch.float64)

    def objective(proxies):
        by_proxy = torch.einsum("nd,ckd->cnk", u, proxies) / lengths[:, None]
        return proxy_anchor((by_proxy * shares).sum(2).T, labels, alpha=8.0, margin=0.1)

    gradient = torch.autograd.functional.jacobian(objective, draw)
    hessian = torch.autograd.functional.hessian(objective, draw).reshape(draw.numel(), -1).diagonal().view_as(draw)
    g, h = slope_and_curvature_by_loops(draw, u, labels, alpha=8.0, margin=0.1, kind=kind, gamma=0.2)
    torch.testing.assert_close(g, gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(h, hessian, rtol=1e-9, atol=1e-9)
    # And the step itself, where the KL outweighs H: μ moves by −g σ²/τ.
    tau = 1e7
    options = {"alpha": 8.0, "margin": 0.1, "class_similarity": kind, "gamma": 0.2}
    moved, _ = newton_update(mu, sigma, embeddings, labels, noise[:1], tau=tau, **options)
    torch.testing.assert_close((mu - moved) * tau / sigma.square(), gradient, rtol=1e-4, atol=1e-6)


def test_proxies_that_are_alike_stay_alike():
    mu, sigma, embeddings, labels, noise = problem()
    three = [part.unsqueeze(axis).repeat_interleave(3, axis) for part, axis in ((mu, 1), (sigma, 1), (noise, 2))]
    alike = newton_update(three[0], three[1], embeddings, labels, three[2], class_similarity="mean")
    assert torch.equal(alike[0][:, 0], alike[0][:, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_without_newton_steps_and_noise_several_proxies_are_mpa_on_mu(kind):
    torch.manual_seed(0)
    options = {"proxies_per_class": 3, "class_similarity": kind, "gamma": 0.3}
    loss = VariationalProxyAnchor(6, 4, newton_steps=0, **options).double()
    plain = MultiProxyAnchor(6, 4, tau=0.0, **options).double()
    with torch.no_grad():
        loss.bank.vectors.copy_(plain.bank.vectors)
        loss.bank.deviation_before_softplus.fill_(-60.0)
    # Every class is in the batch: MPA divides by the classes that are, VCPA by all.
    embeddings, labels = torch.randn(9, 4, dtype=torch.float64, requires_grad=True), torch.arange(9) % 6
    ours, theirs = loss(embeddings, labels), plain(embeddings, labels)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-9)
    gradients = torch.autograd.grad(ours, (embeddings, loss.bank.vectors))
    expected = torch.autograd.grad(theirs, (embeddings, plain.bank.vectors))
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


def test_several_proxies_train_draw_and_report_by_proxy():
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(4, 5, proxies_per_class=3, newton_steps=2, tau=0.1).double()
    assert loss.mu.shape == loss.sigma.shape == (4, 3, 5)
    embeddings, labels = torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 4
    twin = copy.deepcopy(loss)
    noise = torch.stack([twin.bank.noise() for _ in range(2)])
    mu, sigma = newton_update(twin.mu, twin.sigma, embeddings, labels, noise, tau=0.1)
    unit = normalize(mu + sigma * twin.bank.noise(), dim=2)
    by_proxy = torch.einsum("nd,ckd->nck", normalize(embeddings), unit)
    similarities = ((by_proxy / 0.1).softmax(2) * by_proxy).sum(2)
    expected = proxy_anchor(similarities, labels, alpha=32.0, margin=0.1)
    assert loss(embeddings, labels).item() == pytest.approx(expected.item(), abs=1e-9)
    assert torch.equal(loss.mu, mu)
    assert torch.equal(loss.sigma, sigma)
    assert loss.uncertainty(draws=10).shape == (4, 3)


def test_several_proxies_find_the_modes_of_a_class():
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(2, 16, proxies_per_class=2, tau=8.0, gamma=0.1)
    modes = torch.eye(16)[:4]
    for _ in range(60):
        drawn = torch.randint(4, (24,))
        loss(modes[drawn] + 0.05 * torch.randn(24, 16), drawn // 2)
    by_proxy = normalize(modes) @ normalize(loss.mu.flatten(0, 1)).T
    assert by_proxy.argmax(1).tolist() in ([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 3, 2], [1, 0, 3, 2])


def test_without_newton_steps_and_noise_it_is_proxy_anchor_on_mu():
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(6, 4, newton_steps=0).double()
    plain = ProxyAnchor(6, 4, positive_norm="all").double()
    with torch.no_grad():
        loss.bank.vectors.copy_(plain.bank.vectors)
        loss.bank.deviation_before_softplus.fill_(-60.0)
    embeddings, labels = torch.randn(9, 4, dtype=torch.float64, requires_grad=True), torch.arange(9) % 5
    ours, theirs = loss(embeddings, labels), plain(embeddings, labels)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-9)
    gradients = torch.autograd.grad(ours, (embeddings, loss.bank.vectors))
    expected = torch.autograd.grad(theirs, (embeddings, plain.bank.vectors))
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


def test_without_newton_steps_mu_and_sigma_get_the_reparametrised_gradient_and_the_kl_none():
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(3, 4, newton_steps=0).double()
    assert {name for name, p in loss.named_parameters() if p.requires_grad} == {
        "bank.vectors",
        "bank.deviation_before_softplus",
    }
    assert torch.allclose(loss.sigma, torch.ones(3, 4, dtype=torch.float64))
    embeddings, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 0])
    noise = copy.deepcopy(loss).bank.noise().squeeze(1)
    loss(embeddings, labels).backward()

    mu = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    raw = torch.full((3, 4), math.log(math.e - 1), dtype=torch.float64, requires_grad=True)
    sigma = torch.log1p(raw.exp())
    kl = kl_divergence(Normal(mu, sigma), Normal(mu.detach(), sigma.detach())).sum()
    assert all(part.abs().max() < 1e-12 for part in torch.autograd.grad(kl, (mu, raw), retain_graph=True))
    similarities = normalize(embeddings) @ normalize(mu + sigma * noise).T
    expected = torch.autograd.grad(proxy_anchor(similarities, labels, alpha=32.0, margin=0.1), (mu, raw))
    torch.testing.assert_close(loss.bank.vectors.grad.squeeze(1), expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(loss.bank.deviation_before_softplus.grad.squeeze(1), expected[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("stochastic", "norm"), [(True, "all"), (False, "all"), (True, "present")])
def test_a_training_step_updates_then_draws_then_compares(stochastic, norm):
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(3, 4, newton_steps=2, stochastic=stochastic, tau=0.1, positive_norm=norm).double()
    of_loss = {"alpha": 32.0, "margin": 0.1, "positive_norm": norm}
    embeddings, labels = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 0, 1, 1, 0])
    twin = copy.deepcopy(loss)
    for _ in range(3):
        noise = torch.stack([twin.bank.noise().squeeze(1) for _ in range(2)])
        mu, sigma = newton_by_autograd(
            twin.mu, twin.sigma, embeddings.detach(), labels, noise, tau=0.1, sigma_min=1e-5, **of_loss
        )
        twin.bank.assign(mu, sigma)
        proxies = mu + sigma * twin.bank.noise().squeeze(1) if stochastic else mu
        expected = proxy_anchor(normalize(embeddings) @ normalize(proxies).T, labels, **of_loss)
        value = loss(embeddings, labels)
        assert value.item() == pytest.approx(expected.item(), abs=1e-9)
        (gradient,) = torch.autograd.grad(value, embeddings)
        (expected_gradient,) = torch.autograd.grad(expected, embeddings)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(loss.mu.detach(), mu.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(loss.sigma, sigma.detach(), rtol=1e-9, atol=1e-9)


def test_gradients_reach_the_network_only():
    loss = VariationalProxyAnchor(4, 3)
    assert not any(p.requires_grad for p in loss.parameters())
    assert loss.bank.vectors.shape == (4, 1, 3)
    embeddings = torch.randn(6, 3, requires_grad=True)
    loss(embeddings, torch.arange(6) % 4).backward()
    assert embeddings.grad.abs().sum() > 0
    assert loss.bank.vectors.grad is None


def test_two_forward_passes_before_a_backward_pass():
    loss = VariationalProxyAnchor(4, 3, stochastic=False)
    embeddings = torch.randn(6, 3, requires_grad=True)
    first = loss(embeddings, torch.arange(6) % 4)
    (first + loss(embeddings, torch.arange(6) % 4)).backward()
    assert torch.isfinite(embeddings.grad).all()


def test_in_eval_mode_nothing_is_updated_or_drawn():
    torch.manual_seed(0)
    loss, plain = VariationalProxyAnchor(4, 3), ProxyAnchor(4, 3, positive_norm="all")
    embeddings, labels = torch.randn(6, 3), torch.arange(6) % 4
    at_prior = loss.eval()(embeddings, labels)
    # μ = 0 has similarity 0 to everything: each class costs what its batch samples cost at s = 0.
    terms = [math.log(1 + k * math.exp(3.2)) + math.log(1 + (6 - k) * math.exp(3.2)) for k in (2, 2, 1, 1)]
    assert at_prior.item() == pytest.approx(sum(terms) / 4, rel=1e-6)
    loss.train()(embeddings, labels)
    before = {name: value.clone() for name, value in loss.eval().state_dict().items()}
    with torch.no_grad():
        plain.bank.vectors.copy_(loss.bank.vectors)
    assert loss(embeddings, labels).item() == pytest.approx(plain(embeddings, labels).item(), rel=1e-6)
    loss.uncertainty(draws=10)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


def test_it_learns_an_easy_problem():
    torch.manual_seed(0)
    # τ for 4 classes in 16 dimensions that makes the steps as long as the paper's 0.01 for 100 classes in 512.
    loss = VariationalProxyAnchor(4, 16, tau=8.0)
    centres = torch.eye(16)[:4]
    before = loss.eval()(centres, torch.arange(4)).item()
    loss.train()
    for _ in range(30):
        labels = torch.randint(4, (20,))
        loss(centres[labels] + 0.1 * torch.randn(20, 16), labels)
    assert loss.eval()(centres, torch.arange(4)).item() < 0.1 * before
    assert loss.class_similarities(centres).argmax(dim=1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("per_class", [1, 3])
@pytest.mark.parametrize("newton_steps", [0, 3])
def test_resuming_continues_the_stream_bit_for_bit(newton_steps, per_class, tmp_path):
    loss = VariationalProxyAnchor(4, 3, newton_steps=newton_steps, proxies_per_class=per_class)
    embeddings, labels = torch.randn(6, 3), torch.arange(6) % 4
    loss(embeddings, labels)
    torch.save(loss.state_dict(), tmp_path / "state.pt")
    resumed = VariationalProxyAnchor(4, 3, newton_steps=newton_steps, proxies_per_class=per_class)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    twin = copy.deepcopy(loss)
    for _ in range(3):
        value = loss(embeddings, labels)
        assert torch.equal(resumed(embeddings, labels), value)
        assert torch.equal(twin(embeddings, labels), value)
    assert torch.equal(loss.mu, resumed.mu)
    assert torch.equal(loss.sigma, resumed.sigma)


def seeded(seed, *shape):
    torch.manual_seed(seed)
    return VariationalProxyAnchor(*shape)


def test_a_stream_of_its_own_makes_it_reproducible_and_leaves_the_global_one_alone():
    embeddings, labels = torch.randn(6, 3), torch.arange(6) % 4
    losses = [seeded(seed, 4, 3) for seed in (5, 5, 6)]
    before = torch.get_rng_state()
    values = [loss(embeddings, labels).item() for loss in losses]
    assert torch.equal(torch.get_rng_state(), before)
    assert values[0] == values[1] != values[2]


def test_uncertainty():
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(3, 16).double()
    # At the prior the normalised draws are uniform on the sphere: each coordinate has variance 1/D, σ̄ = D/√D = √D.
    assert loss.uncertainty(draws=4000).tolist() == pytest.approx([4.0] * 3, rel=0.02)
    # Far from the origin only the 15 directions across μ vary, each by σ/‖μ‖.
    mu = torch.zeros(3, 16, dtype=torch.float64)
    mu[:, 0] = 100.0
    sigma = torch.tensor([[1.0], [2.0], [1e-5]], dtype=torch.float64).expand(3, 16)
    loss.bank.assign(mu, sigma)
    assert loss.uncertainty(draws=4000).tolist() == pytest.approx([0.15, 0.30, 1.5e-6], rel=0.02)
    with pytest.raises(ValueError, match="draws must be at least 2"):
        loss.uncertainty(draws=1)


def test_under_autocast_state_and_loss_stay_float32():
    torch.manual_seed(0)
    embeddings, labels = torch.randn(6, 8), torch.arange(6) % 4
    full, half = (seeded(1, 4, 8) for _ in range(2))
    expected = full(embeddings.bfloat16().float(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = half(embeddings.bfloat16(), labels)
    assert value.dtype == half.mu.dtype == half.sigma.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"tau": 0.0}, "tau"),
        ({"newton_steps": -1}, "newton_steps"),
        ({"sigma_min": 0.0}, "sigma_min"),
        ({"alpha": -1.0}, "alpha"),
        ({"proxies_per_class": 0}, "proxies_per_class"),
        ({"gamma": 0.0}, "gamma"),
        ({"class_similarity": "median"}, "class_similarity"),
        ({"positive_norm": "some"}, "positive_norm"),
    ],
)
def test_impossible_options_are_refused_by_name(options, named):
    with pytest.raises(ValueError, match=f"{named} must be .* got"):
        VariationalProxyAnchor(3, 4, **options)


@pytest.mark.parametrize("steps", [0, 1])
def test_one_newton_step_moves_the_proxies_and_none_leaves_them(steps):
    torch.manual_seed(0)
    loss = VariationalProxyAnchor(3, 4, newton_steps=steps)
    before = loss.mu.detach().clone()
    loss(torch.randn(6, 4), torch.arange(6) % 3)
    assert torch.equal(loss.mu, before) == (steps == 0)
