from __future__ import annotations

from nearkin.training.methods.plain import Plain
from nearkin.training.state import Method


def test_every_hook_of_the_loop_is_as_it_is():
    hooks = {name for name in vars(Method) if not name.startswith("_")}
    assert {"check", "loss", "after_step"} <= hooks
    assert not hooks & set(vars(Plain))
