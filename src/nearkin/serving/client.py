"""A client of a served index, with methods of :class:`~nearkin.index.Index`."""

from __future__ import annotations

import io
import json
import os
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from PIL import Image

from nearkin.data.image_inputs import ImageInputs
from nearkin.errors import DataError, NearkinError
from nearkin.index.index import Stored
from nearkin.index.items import Item
from nearkin.index.search import Hit, SearchOptions, is_id, is_vectors


class ServerError(NearkinError):
    """An error from a server; ``status`` is that of HTTP, None if the server could not be reached."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """An index that ``nearkin serve`` serves at ``url``, with its ``key`` if it needs one.

    >>> Client("127.0.0.1:8000")
    Traceback (most recent call last):
    ...
    nearkin.errors.DataError: '127.0.0.1:8000' is no address of a server: give one like http://127.0.0.1:8000
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 60.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise DataError(f"{url!r} is no address of a server: give one like http://127.0.0.1:8000")
        self._url, self._key, self._timeout = url.rstrip("/"), key, timeout
        # The key goes to the server only, never through a proxy from the environment or to a redirect's target.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def search(self, query: Any = None, k: int = 10, **options: Unpack[SearchOptions]) -> list[Hit]:
        """As :meth:`Index.search <nearkin.Index.search>`, of one query.

        The query is a path of this machine, bytes, a Pillow image or a uint8 array; the id of an item; a vector.
        """
        body: dict[str, Any] = {"k": k, "collapse": False, **options}
        body["where"] = {name: _filter(value) for name, value in (options.get("where") or {}).items()}
        if query is None or is_id(query) or is_vectors(query):
            by = {} if query is None else {"id": query} if is_id(query) else {"vector": query}
            answer = self._json("POST", "/search", body | by)
        else:
            answer = self._upload("/search", query, {"options": _to_json(body)})
        hits = [{name: hit[name] for name in Hit.__dataclass_fields__} for hit in answer["hits"]]
        return [Hit(**hit | {"copy_ids": tuple(hit["copy_ids"])}) for hit in hits]

    def add(self, image: Any, label: str | None = None, columns: Mapping[str, Any] | None = None) -> Stored:
        """Add one image; returns its id, and whether it is new."""
        parts = {} if label is None else {"label": label}
        parts |= {} if columns is None else {"columns": _to_json(dict(columns))}
        return Stored(**self._upload("/items", image, parts))

    def remove(self, ids: Sequence[int]) -> None:
        """Remove items for good, one after the other; an error where one is not there."""
        for id in ids:
            self._request("DELETE", f"/items/{int(id)}")

    def get(self, id: int) -> Item:
        """One item."""
        item = self._json("GET", f"/items/{int(id)}")
        return Item(**{name: item[name] for name in Item.__dataclass_fields__})

    def thumbnail(self, id: int) -> bytes:
        """A small JPEG of an item."""
        return self._request("GET", f"/items/{int(id)}/thumbnail")

    def status(self) -> dict[str, Any]:
        """What the server's index holds, and the limits of requests: the answer of ``/index``."""
        return dict(self._json("GET", "/index"))

    def _upload(self, path: str, image: Any, parts: Mapping[str, str]) -> Any:
        boundary = secrets.token_hex(16)
        lines = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{parts[name]}\r\n' for name in parts
        ]
        lines.append(f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n')
        body = "".join(lines).encode() + _bytes_of(image) + f"\r\n--{boundary}--\r\n".encode()
        return json.loads(self._request("POST", path, body, f"multipart/form-data; boundary={boundary}"))

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return json.loads(self._request(method, path, None if body is None else _to_json(body).encode()))

    def _request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        headers = {} if body is None else {"Content-Type": content_type}
        headers |= {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            try:
                message = str(json.loads(error.read())["error"])
            except (ValueError, KeyError, TypeError):
                message = f"the server answered with status {error.code}: is it 'nearkin serve'?"
            raise ServerError(message, error.code) from error
        except OSError as error:  # refused, reset, too late
            reason = getattr(error, "reason", error)
            raise ServerError(f"{self._url} cannot be reached ({reason}): is 'nearkin serve' running there?") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _filter(value: Any) -> Any:
    if isinstance(value, tuple):
        if len(value) != 2:
            raise DataError(f"a range is a pair (from, to), got {value!r}; give a list for several values")
        return dict(zip(("from", "to"), value, strict=True))
    return value


def _to_json(value: Mapping[str, Any]) -> str:
    """JSON, in which arrays and numbers of NumPy and torch become lists and numbers, and sets lists."""
    return json.dumps(value, default=lambda other: other.tolist() if hasattr(other, "tolist") else list(other))


def _bytes_of(image: Any) -> bytes:
    """An image as the content of a file."""
    if isinstance(image, (bytes, bytearray)):
        return bytes(image)
    if isinstance(image, (str, os.PathLike)):
        try:
            return Path(image).expanduser().read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {str(image)!r}: {error.strerror or error}") from error
    content = io.BytesIO()
    Image.fromarray(ImageInputs([image], shorter_side=None)[0]).save(content, "PNG")
    return content.getvalue()
