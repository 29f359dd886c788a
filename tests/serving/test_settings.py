"""Settings that cannot be are refused when they are made."""

from __future__ import annotations

import pytest

from nearkin.errors import RecipeError
from nearkin.serving.settings import Settings, is_loopback


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "NEARKIN_API_KEY"),
        ({"host": "birds.example"}, "NEARKIN_API_KEY"),
        ({"host": "192.168.1.5"}, "NEARKIN_API_KEY"),
        ({"key": "short"}, "12 characters"),
        ({"key": "a key that is no ASCII: ä"}, "ASCII"),
        ({"key": "two lines are not\none"}, "ASCII"),
        ({"port": -1}, "port"),
        ({"port": 70_000}, "port"),
        ({"rate": 0.0}, "rate"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"timeout": -1.0}, "timeout"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_refused(settings, said):
    with pytest.raises(RecipeError, match=said):
        Settings(**settings)


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "birds.example", "")))
