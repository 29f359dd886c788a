from __future__ import annotations

import warnings

import pytest

from nearkin.notices import Notice, notice, notices_told_to


def test_each_text_is_told_once_and_other_warnings_go_their_way(recwarn):
    told = []
    with notices_told_to(told.append):
        for text in ("2 images are gone", "1 image is new", "2 images are gone"):
            notice(text)
        warnings.warn("of another kind", stacklevel=1)
    assert told == ["2 images are gone", "1 image is new"]
    assert [str(warning.message) for warning in recwarn] == ["of another kind"]


def test_afterwards_a_notice_is_a_warning_again():
    with notices_told_to(lambda text: pytest.fail(text)):
        pass
    with pytest.warns(Notice, match="heard by nobody else"):
        notice("heard by nobody else")


def test_a_notice_can_be_made_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        with pytest.raises(Notice, match="changed"):
            notice("an image has changed")
