from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from nearkin import errors
from nearkin.errors import (
    DataError,
    MissingExtraError,
    NearkinError,
    Notice,
    OutOfMemoryError,
    RecipeError,
    catching_out_of_memory,
    mistakes_in,
    notice,
    notices_to,
    require,
)

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 392.00 MiB.")


def test_scripts_can_tell_mistakes_apart_by_the_exit_code():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NearkinError)]
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    assert codes == {
        "NearkinError": 1,
        "RecipeError": 2,
        "DataError": 3,
        "OutputError": 3,
        "MissingExtraError": 4,
        "TrainingError": 5,
        "BusyError": 6,
        "LostRankError": 7,
        "OutOfMemoryError": 8,
        "InterruptedRunError": 130,
    }


def test_a_mistake_in_a_recipe_says_where_and_others_pass_as_they_are():
    with (
        pytest.raises(RecipeError, match=r"^rows\.yml: row 'a': no such key$"),
        mistakes_in("rows.yml"),
        mistakes_in("row 'a'"),
    ):
        raise RecipeError("no such key")
    with pytest.raises(DataError, match=r"^no such file$"), mistakes_in("rows.yml"):
        raise DataError("no such file")


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
def test_a_package_that_cannot_be_imported_is_named_with_its_extra(error, tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(f"raise {error.__name__}('wrong version\\nof torch')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"'broken_package': pip install 'nearkin\[hf\]' \(wrong version\)$"):
        require("broken_package", "hf")


def test_a_mistake_inside_a_package_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "mistaken_package.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        require("mistaken_package", "hf")
    assert require("json", "hf").loads("1") == 1


def test_each_text_is_told_once_and_other_warnings_go_their_way(recwarn):
    told = []
    with notices_to(told.append):
        for text in ("2 images are gone", "1 image is new", "2 images are gone"):
            notice(text)
        warnings.warn("of another kind", stacklevel=1)
    assert told == ["2 images are gone", "1 image is new"]
    assert [str(warning.message) for warning in recwarn] == ["of another kind"]


def test_afterwards_a_notice_is_a_warning_again():
    with notices_to(lambda text: pytest.fail(text)):
        pass
    with pytest.warns(Notice, match="heard by nobody else"):
        notice("heard by nobody else")


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)"),
    ],
)
def test_full_memory_of_a_gpu_says_what_to_do(error):
    with pytest.raises(OutOfMemoryError) as raised, catching_out_of_memory():
        raise error
    message = str(raised.value)
    assert message.startswith("the GPU's memory is full (")
    assert "training.micro_batch" in message
    assert "\n" not in message


@pytest.mark.parametrize("ask", [lambda: torch.empty(1 << 59), lambda: np.empty(1 << 59)])
def test_full_memory_of_the_machine_says_how_much_was_asked_for(ask):
    with pytest.raises(OutOfMemoryError) as raised, catching_out_of_memory():
        ask()
    message = str(raised.value)
    assert message.startswith("the machine's memory is full (")
    assert "alloc" in message.split(")")[0]


def test_out_of_memory_keeps_its_cause_and_other_errors_pass():
    with pytest.raises(OutOfMemoryError) as raised, catching_out_of_memory():
        raise FULL
    assert raised.value.__cause__ is FULL
    for other in (RuntimeError("CUDA error: device-side assert triggered"), ValueError("memory")):
        with pytest.raises(type(other)) as raised, catching_out_of_memory():
            raise other
        assert raised.value is other
