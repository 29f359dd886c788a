"""Weights from the Hugging Face hub: ``hub:OWNER/MODEL``, one safetensors file, downloaded once and kept in its cache.

The library ``huggingface_hub`` resumes interrupted downloads and honours ``HF_HUB_OFFLINE``, ``HF_HOME`` and
``HF_ENDPOINT``. No code of a model is run and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
import urllib.parse
import urllib.request
from pathlib import Path

from nearkin.encoders.preprocessing import Preprocessing
from nearkin.errors import DataError, RecipeError, require

PREFIX = "hub:"


def weights_file(weights: str | Path) -> Path:
    """The local file of ``weights``, which is downloaded first where it is ``hub:OWNER/MODEL`` or ``…@REVISION``.

    >>> weights_file("resnet50.safetensors")
    PosixPath('resnet50.safetensors')
    """
    if not str(weights).startswith(PREFIX):
        return Path(weights).expanduser()
    file = _download(str(weights), "model.safetensors")
    # Large files are kept under their SHA-256.
    expected = file.resolve().name
    if re.fullmatch("[0-9a-f]{64}", expected):
        with open(file, "rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != expected:
                raise DataError(f"{weights} is damaged on this disk: delete {file.resolve()} and try again")
    return file


def check_preprocessing(weights: str, preprocessing: Preprocessing) -> None:
    """Refuse a backbone that would show its weights other pixels than they were trained with, where the hub says so."""
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
    model, _, revision = weights.removeprefix(PREFIX).partition("@")
    # A cached file is taken without a question to the hub: where none answers, the library asks for half a minute.
    cached = hub.try_to_load_from_cache(model, name, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    try:
        endpoint = os.environ.get("HF_ENDPOINT") or hub.constants.ENDPOINT
        if not hub.constants.HF_HUB_OFFLINE and not urllib.request.getproxies():
            # Without a network this fails at once, where the library tries for half a minute.
            socket.getaddrinfo(urllib.parse.urlsplit(endpoint).hostname, None)
        return Path(hub.hf_hub_download(model, name, revision=revision or None, endpoint=endpoint))
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{name} of {PREFIX}{model} cannot be had ({reason}): check the name and the connection, or download it "
            f"elsewhere and give the file with encoder.weights=PATH"
        ) from error
