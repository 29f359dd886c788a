"""What every loss of the catalogue promises to those who use it: state that resumes, errors that help, documents."""

from __future__ import annotations

import copy
import inspect
import sys
import typing
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nearkin.losses
from nearkin.losses import InformativeSampleWeights, catalogue, kind, options

PAIR = [name for name, loss in catalogue().items() if kind(loss) == "pair"]


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# --- state -----------------------------------------------------------------------------------------------------------


def test_a_loaded_state_continues_to_the_bit(member):
    def train(loss: nn.Module, first: int) -> list[Tensor]:
        seen = []
        for seed in range(first, first + 3):
            seen.extend(member.step(loss, *member.batch(seed, (torch.arange(14) // 2 + seed) % member.classes)))
            with torch.no_grad():
                for parameter in loss.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad
        return seen

    torch.manual_seed(0)
    loss = member.make()
    if hasattr(loss, "begin_epoch"):
        loss.begin_epoch(2)
    train(loss, 0)
    state = copy.deepcopy(loss.state_dict())
    uninterrupted = train(loss, 3)
    torch.manual_seed(1)
    resumed = member.make()
    resumed.load_state_dict(state)
    for a, b in zip(train(resumed, 3), uninterrupted, strict=True):
        assert torch.equal(a, b)
    assert same_state(resumed.state_dict(), loss.state_dict())


def test_state_is_plain_tensors(member, tmp_path):
    loss = member.settled()
    assert all(isinstance(value, Tensor) for value in loss.state_dict().values())
    torch.save(loss.state_dict(), tmp_path / "state.pt")
    assert same_state(torch.load(tmp_path / "state.pt", weights_only=True), loss.state_dict())


def test_evaluation_changes_nothing(member):
    loss = member.settled().eval()
    before = copy.deepcopy(loss.state_dict())
    x, y = member.batch(9)
    assert torch.equal(loss(x, y), loss(x, y))
    assert same_state(loss.state_dict(), before)


def test_a_deep_copy_is_independent_and_equal(member):
    loss = member.settled()
    before, copied = copy.deepcopy(loss.state_dict()), copy.deepcopy(loss)
    given = [member.batch(seed) for seed in range(2)]
    there = [copied(x, y) for x, y in given]
    assert same_state(loss.state_dict(), before)
    assert all(torch.equal(loss(x, y), value) for (x, y), value in zip(given, there, strict=True))


# --- how it is called ------------------------------------------------------------------------------------------------

X, Y = torch.randn(14, 4, generator=torch.Generator().manual_seed(0)), torch.arange(14) % 7
BAD = {
    "labels of floats": (X, Y.float(), r"labels must be integers, got torch\.float32"),
    "too few labels": (X, Y[:-1], r"labels must have shape \[14\].*got \[13\]"),
    "a matrix of labels": (X, Y[:, None], r"labels must have shape \[14\].*got \[14, 1\]"),
    "one embedding": (X[0], Y[:1], r"embeddings must have shape \[N, D\], got \[4\]"),
    "feature maps": (X[:, :, None], Y, r"embeddings must have shape \[N, D\], got \[14, 4, 1\]"),
    "integer embeddings": (X.long(), Y, r"embeddings must be floating point, got torch\.int64"),
    "embeddings of numpy": (X.numpy(), Y, r"embeddings must be a torch tensor.*torch\.from_numpy\(embeddings\)"),
    "a list of embeddings": (X.tolist(), Y, r"embeddings must be a torch tensor of shape \[N, D\], got list"),
    "labels of numpy that are no integers": (
        X,
        Y.double().numpy(),
        r"labels must be integers, got float64 \(ndarray\)",
    ),
    "names as labels": (X, ["a"] * 14, r"labels must be integers, got <U1 \(list\)"),
    "an empty batch": (X[:0], Y[:0], r"embeddings must hold at least one row"),
    "NaN": (X.masked_fill(torch.arange(14)[:, None] == 3, float("nan")), Y, r"embeddings must be finite.*row 3"),
    "infinity": (X.masked_fill(torch.arange(14)[:, None] == 5, float("inf")), Y, r"embeddings must be finite.*row 5"),
}
BAD_FOR_PROXIES = {
    "a label too large": (X, Y.clone().fill_(7), r"labels must lie in 0\.\.6.*got 7"),
    "a negative label": (X, Y - 1, r"labels must lie in 0\.\.6.*got -1"),
    "another dimension": (X[:, :3], Y, r"embeddings must have 4 columns.*got 3"),
}


@pytest.mark.parametrize("wrong", BAD | BAD_FOR_PROXIES)
def test_bad_input_is_named_and_leaves_no_trace(member, wrong):
    if wrong in BAD_FOR_PROXIES and member.kind != "proxy":
        assert torch.isfinite(member.make()(*BAD_FOR_PROXIES[wrong][:2]))
        return
    x, y, message = (BAD | BAD_FOR_PROXIES)[wrong]
    loss = member.settled()
    before = copy.deepcopy(loss.state_dict())
    with pytest.raises(ValueError, match=message):
        loss(x, y)
    assert same_state(loss.state_dict(), before)


def test_labels_may_be_a_numpy_array_or_a_list(member):
    x, y = member.batch(9)
    expected = member.settled()(x, y)
    for labels in (y.numpy(), y.numpy().astype("uint32"), y.tolist()):
        assert torch.equal(member.settled()(x, labels), expected)


@pytest.mark.parametrize("member", PAIR, indirect=True)
def test_labels_of_references_may_be_a_list(member):
    x, y = member.batch(9)
    loss = member.make()
    assert torch.equal(loss(x, y, x, y.tolist()), loss(x, y, x, y))


def choices(cls: type, option: inspect.Parameter) -> tuple[object, ...]:
    """What an option of few values may be."""
    if isinstance(option.default, bool):
        return True, False
    if not isinstance(option.default, str):
        return ()
    annotation = option.annotation
    if isinstance(annotation, str):
        annotation = eval(annotation, vars(sys.modules[cls.__module__]))
    return typing.get_args(annotation)


def other_value(cls: type, option: inspect.Parameter, small: dict[str, object]) -> object:
    """A value other than the default that the option should accept; None where there is no telling."""
    match option.default:
        case bool() | str():
            return next(choice for choice in choices(cls, option) if choice != option.default)
        case int():
            return option.default + 1
        case float():
            return 0.9 * option.default or 0.1
    return small.get(option.name)


def test_the_constructor_keeps_what_it_was_given_under_the_same_name(member):
    cls = member.cls
    given = {key: other_value(cls, option, member.small) for key, option in options(cls).items()}
    given = {key: value for key, value in given.items() if value is not None}
    loss = member.make(**given)
    for key, value in given.items():
        kept = getattr(loss, key) if hasattr(loss, key) else getattr(loss.weighting, key)
        assert (kept.item() if isinstance(kept, Tensor) else kept) == pytest.approx(value), key
    if member.kind == "proxy":
        assert loss.num_classes == member.classes
        assert loss.bank.vectors.shape == (member.classes, given.get("proxies_per_class", 1), member.dim)


def test_every_choice_of_an_option_works(member):
    for key, option in options(member.cls).items():
        for choice in choices(member.cls, option):
            loss = member.make(**{key: choice})
            for labels in (member.two_each, [4]):
                assert torch.isfinite(member.finite_step(loss, *member.batch(0, labels))), f"{key}={choice}"


def test_options_are_keyword_only_and_unknown_ones_are_refused(member):
    cls = member.cls
    positional = [
        p.name for p in inspect.signature(cls).parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert positional == {"proxy": ["num_classes", "dim"], "pair": [], "wrapper": ["pair_loss"]}[member.kind]
    with pytest.raises(TypeError, match="magin"):
        member.make(magin=0.1)


def test_it_is_documented_and_tested(member):
    cls = member.cls
    text = inspect.getdoc(cls) or ""
    assert ":math:" in text or ".. math::" in text
    assert ">>> loss" in text
    text += inspect.getdoc(InformativeSampleWeights) if member.name.startswith("proxy_isa") else ""
    for parameter in inspect.signature(cls).parameters:
        assert f"\n    {parameter}: " in text, f"{parameter} is not among the Args"
    assert getattr(nearkin.losses, cls.__name__) is cls
    assert (Path(__file__).parents[1] / "losses" / f"test_{member.name}.py").is_file()
