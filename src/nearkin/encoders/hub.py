"""Weights from the Hugging Face hub: ``hub:OWNER/MODEL``, one safetensors file, downloaded once into the hub's cache.

The library ``huggingface_hub`` resumes interrupted downloads and reads ``HF_HUB_OFFLINE``, ``HF_HOME`` and
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
    """The local file of ``weights``; those of ``hub:OWNER/MODEL`` or ``hub:OWNER/MODEL@REVISION`` are downloaded first.

    >>> weights_file("resnet50.safetensors")
    PosixPath('resnet50.safetensors')
    """
    if not str(weights).startswith(PREFIX):
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
    model, _, revision = weights.removeprefix(PREFIX).partition("@")
    cached = hub.try_to_load_from_cache(model, name, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    try:
        endpoint = os.environ.get("HF_ENDPOINT") or hub.constants.ENDPOINT
        if not hub.constants.HF_HUB_OFFLINE and not urllib.request.getproxies():
            # Without a network this fails at once; the library would try for half a minute.
            socket.getaddrinfo(urllib.parse.urlsplit(endpoint).hostname, None)
        return Path(hub.hf_hub_download(model, name, revision=revision or None, endpoint=endpoint))
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"cannot download {name} of {PREFIX}{model} ({reason}): check the name and the connection, or download it "
            f"elsewhere and give the file with encoder.weights=PATH"
        ) from error
