"""Weight files: downloaded from the Hugging Face hub or local, and loaded into a backbone.

``hub:OWNER/MODEL`` is one safetensors file, downloaded once into the cache of ``huggingface_hub``, which resumes
interrupted downloads and reads ``HF_HUB_OFFLINE``, ``HF_HOME`` and ``HF_ENDPOINT``. No code or pickle is run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nearkin.encoders.preprocessing import Preprocessing
from nearkin.errors import DataError, RecipeError, require

HUB = "hub:"
PREFIXES = ("module.", "backbone.", "model.")
CLASSIFIERS = ("fc.", "last_linear.", "_fc.", "classifier.", "head.")
WRAPPERS = ("state_dict", "model_state_dict", "model")
PICKLES = (".pth", ".pt", ".bin", ".ckpt")


@dataclass(frozen=True)
class WeightsReport:
    """The tensors of a weight file by name, without wrappers' prefixes.

    ``missing`` can only be batch-norm counters; ``unexpected`` are tensors that the backbone does not have.
    """

    path: Path
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]

    def __str__(self) -> str:
        """
        >>> print(WeightsReport(Path("net.pth"), ("a", "b"), (), ("aux.weight",), ()))
        net.pth: 2 tensors loaded; 1 unexpected (aux.weight)
        """
        parts = [f"{len(self.loaded)} tensors loaded"]
        for what in ("missing", "mismatched", "unexpected"):
            if names := getattr(self, what):
                more = f", … {len(names) - 4} more" if len(names) > 4 else ""
                parts.append(f"{len(names)} {what} ({', '.join(names[:4])}{more})")
        return f"{self.path.name}: {'; '.join(parts)}"


def load_weights(module: nn.Module, path: str | Path) -> WeightsReport:
    """Load a ``.safetensors`` file or a ``.pth`` of tensors into ``module``, completely or not at all.

    Prefixes of wrappers (``module.``, ``backbone.``, ``model.``) and classifiers are ignored, and tensors stored as
    ``[1, C]`` become ``[C]``. A parameter that is missing or has another shape raises :class:`DataError`.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"module.weight": torch.ones(1, 2).half(), "fc.bias": torch.ones(5)}, f"{folder}/a.safetensors")
    ...     print(load_weights(nn.Linear(2, 1, bias=False), f"{folder}/a.safetensors"))
    a.safetensors: 1 tensors loaded
    """
    path = Path(path).expanduser()
    expected = {_bare(name): (name, tensor) for name, tensor in module.state_dict().items()}
    stored = {_bare(name): tensor for name, tensor in _read(path).items()}
    accepted: dict[str, Tensor] = {}
    mismatched = []
    for name in [name for name in stored if name in expected]:
        tensor, (full_name, target) = stored[name], expected[name]
        if tensor.shape == (1, *target.shape):
            tensor = tensor.squeeze(0)
        if tensor.shape == target.shape:
            accepted[full_name] = tensor.to(target.dtype)
        else:
            mismatched.append(f"{name}: {list(tensor.shape)} in the file, {list(target.shape)} in the backbone")
    report = WeightsReport(
        path=path,
        loaded=tuple(_bare(name) for name in accepted),
        missing=tuple(name for name in expected if name not in stored),
        unexpected=tuple(name for name in stored if name not in expected and not name.startswith(CLASSIFIERS)),
        mismatched=tuple(mismatched),
    )
    if report.mismatched or any(not name.endswith("num_batches_tracked") for name in report.missing):
        raise DataError(
            f"these weights do not fit {type(module).__name__}: {report}; take the file for this backbone, or the "
            "backbone for this file"
        )
    module.load_state_dict(accepted, strict=False)
    return report


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise DataError(f"weights file {path} does not exist: give a .safetensors or .pth file, or 'imagenet'")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise DataError(f"weights file {path} is not a readable safetensors file ({error})") from error
    if path.suffix not in PICKLES:
        raise DataError(f"weights file {path} must end in .safetensors or one of {', '.join(PICKLES)}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"weights file {path} holds more than tensors, or is damaged; objects are never unpickled. Save its "
            "state_dict alone, best as .safetensors"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"weights file {path} cannot be read: is it complete? ({error})") from error
    return _tensors(content, path)


def _tensors(content: object, path: Path) -> Mapping[str, Tensor]:
    """The tensors by name in what ``torch.load`` returned, also inside the dictionaries that training scripts save."""
    for _ in range(4):
        if not isinstance(content, Mapping):
            break
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is not None:
            content = inner
        elif tensors := {str(name): value for name, value in content.items() if isinstance(value, Tensor)}:
            return tensors
    raise DataError(f"weights file {path} holds no named tensors: save a module's state_dict()")


def _bare(name: str) -> str:
    """A tensor's name without all prefixes of wrappers: ``conv1.weight``."""
    while name.startswith(PREFIXES):
        name = name.split(".", 1)[1]
    return name


def weights_file(weights: str | Path) -> Path:
    """The local file of ``weights``; those of ``hub:OWNER/MODEL`` or ``hub:OWNER/MODEL@REVISION`` are downloaded first.

    >>> weights_file("resnet50.safetensors")
    PosixPath('resnet50.safetensors')
    """
    if not str(weights).startswith(HUB):
        return Path(weights).expanduser()
    file = _download(str(weights), "model.safetensors")
    expected = file.resolve().name  # the cache names large files by their SHA-256
    if re.fullmatch("[0-9a-f]{64}", expected):
        with open(file, "rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != expected:
                raise DataError(f"{weights} is damaged on this disk: delete {file.resolve()} and try again")
    return file


def check_preprocessing(weights: str, preprocessing: Preprocessing) -> None:
    """Refuse a backbone whose preprocessing differs from that of its weights, where the hub says what that is."""
    try:
        settings = json.loads(_download(weights, "config.json").read_bytes()).get("pretrained_cfg", {})
    except DataError:
        return
    for name in ("mean", "std"):
        expected, actual = settings.get(name), getattr(preprocessing, name)
        if expected and not all(math.isclose(x, y, abs_tol=1e-3) for x, y in zip(expected, actual, strict=True)):
            raise RecipeError(
                f"{weights} was trained on pixels with {name} {expected}, and the backbone has {list(actual)}: use "
                f"the backbone that these weights are for, or set encoder.options.preprocessing="
                f"'{{mean: {settings['mean']}, std: {settings['std']}}}'"
            )


def _download(weights: str, name: str) -> Path:
    hub = require("huggingface_hub", "hub")
    model, _, revision = weights.removeprefix(HUB).partition("@")
    cached = hub.try_to_load_from_cache(model, name, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    endpoint = os.environ.get("HF_ENDPOINT") or hub.constants.ENDPOINT
    try:
        if not hub.constants.HF_HUB_OFFLINE and not urllib.request.getproxies():
            # Without a network this fails at once; the library would try for half a minute.
            socket.getaddrinfo(urllib.parse.urlsplit(endpoint).hostname, None)
        return Path(hub.hf_hub_download(model, name, revision=revision or None, endpoint=endpoint))
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"cannot download {name} of {HUB}{model} ({reason}): check the name and the connection, or download "
            f"{endpoint}/{model}/resolve/{revision or 'main'}/{name} elsewhere and give the file: "
            f"encoder.weights={name}"
        ) from error
