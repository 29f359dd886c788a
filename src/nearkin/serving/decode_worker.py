"""A process that decodes uploads. A crafted file may exploit a decoder, so it has little memory and writes no files.

:mod:`nearkin.serving.decoding` starts it. It reads jobs from standard input until that ends, and writes raw pixels to
standard output.
"""

from __future__ import annotations

import contextlib
import io
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.images import UnreadableImageError, crop_shares, decode_bytes, decode_pillow, register_heic

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

JOB = struct.Struct("<QQQB4d")
"""Size of the file, most pixels, shorter side (0: not shrunk), whether there is a crop, and the crop."""
ANSWER = struct.Struct("<HII")
"""A status as in HTTP, and the height and width of the following pixels, or the length of the error text."""
FORMATS = ("PNG", "JPEG", "MPO", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "HEIF", "JPEG2000", "PPM")
_NAME = Path("the image")


class Refused(Exception):  # noqa: N818
    """A status as in HTTP, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason


def main() -> None:
    """Decode until the input ends; the arguments of the command are ``memory`` and ``seconds``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server finishes its requests, then closes the input
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what libraries print is no answer
    memory, seconds = (int(word) for word in sys.argv[1:3])
    register_heic()
    Image.init()
    _limit("RLIMIT_AS", memory)
    _limit("RLIMIT_FSIZE", 0)
    _limit("RLIMIT_CORE", 0)
    while len(head := jobs.read(JOB.size)) == JOB.size:
        size, most_pixels, shorter_side, has_crop, *crop = JOB.unpack(head)
        _limit("RLIMIT_CPU", int(time.process_time()) + seconds + 1)
        try:
            content = jobs.read(size)
            pixels = decoded(content, most_pixels, shorter_side or None, tuple(crop) if has_crop else None)
            answers.write(ANSWER.pack(200, *pixels.shape[:2]))
            answers.write(np.ascontiguousarray(pixels).data)
        except Refused as refused:
            text = refused.reason.encode()
            answers.write(ANSWER.pack(refused.status, len(text), 0) + text)
        answers.flush()


def decoded(
    content: bytes, most_pixels: int, shorter_side: int | None, crop: tuple[float, ...] | None
) -> NDArray[np.uint8]:
    """Pixels ``[H, W, 3]``, or :class:`Refused`; the number of pixels is checked by the header, before decoding."""
    try:
        try:
            with Image.open(io.BytesIO(content), formats=[name for name in FORMATS if name in Image.OPEN]) as opened:
                width, height = opened.size
        except MemoryError:
            raise
        except Image.DecompressionBombError as error:  # Pillow has a limit, too
            raise Refused(413, f"the image has too many pixels, at most {most_pixels:,} are taken") from error
        except Exception as error:  # a malformed file can make a decoder raise nearly anything
            raise Refused(415, "this is no image, or its format is not supported: send JPEG or PNG") from error
        if width * height > most_pixels:
            raise Refused(413, f"the image has {width:,} x {height:,} pixels, at most {most_pixels:,} are taken")
        if crop is None:
            return decode_bytes(content, path=_NAME, shorter_side=shorter_side)
        whole = decode_bytes(content, path=_NAME)
        return decode_pillow(Image.fromarray(crop_shares(whole, crop)), path=_NAME, shorter_side=shorter_side)
    except UnreadableImageError as error:
        raise Refused(422, f"the image cannot be read: {error.reason}") from error
    except MemoryError as error:
        raise Refused(422, "the image takes too much memory to decode: send it smaller, or as JPEG") from error


def _limit(name: str, value: int) -> None:
    """Lower a limit of this process; on systems without limits only the server's timeout protects it."""
    if resource is not None:
        with contextlib.suppress(ValueError, OSError, AttributeError):
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            resource.setrlimit(number, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
