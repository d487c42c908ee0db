import base64
import contextlib
import io
import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from agent_tools.limits import MIB, Limits
from agent_tools.runtime.kernel.pictures import PictureRefused, check_picture

LIMITS = Limits()


def picture(kind: str, size: tuple[int, int] = (7, 5), **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, kind, **options)
    return file.getvalue()


def noise(size: int) -> bytes:
    """A PNG that does not compress."""
    file = io.BytesIO()
    Image.frombytes("RGB", (size, size), Random(1).randbytes(size * size * 3)).save(file, "PNG")
    return file.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header claims a size."""
    data = picture("PNG")
    return data[:16] + struct.pack(">II", width, height) + data[24:]


def segments(count: int) -> bytes:
    """A JPEG with so many more segments."""
    return JPEG[:2] + b"\xff\xe0\x00\x02" * count + JPEG[2:]


def jpeg_of(width: int, height: int, **options: object) -> bytes:
    """A JPEG whose frame header claims a size."""
    data = picture("JPEG", **options)
    at = data.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def gif_of(width: int, height: int) -> bytes:
    """A GIF whose header claims a size."""
    data = picture("GIF")
    return data[:6] + struct.pack("<HH", width, height) + data[10:]


PNG, JPEG = picture("PNG"), picture("JPEG")


@pytest.mark.parametrize(
    ("mime", "data"),
    [
        pytest.param("image/png", PNG, id="PNG"),
        pytest.param("image/jpeg", JPEG, id="JPEG"),
        pytest.param("image/jpeg", picture("JPEG", progressive=True), id="progressive JPEG"),
        pytest.param("image/jpeg", picture("JPEG", exif=b"Exif\0\0" + b"x" * 5000), id="JPEG with Exif"),
        pytest.param("image/jpeg", picture("JPEG", comment="c" * 60_000), id="JPEG with a comment"),
        pytest.param("image/gif", picture("GIF"), id="GIF"),
        pytest.param("image/png", png_of(5000, 5000), id="PNG of exactly the most pixels"),
        pytest.param("image/jpeg", segments(900), id="JPEG of many segments"),
        pytest.param("image/jpeg", JPEG[:3] + b"\xff\xff" + JPEG[3:], id="JPEG with fill bytes"),
        pytest.param("image/jpeg", jpeg_of(5000, 5000), id="JPEG of exactly the most pixels"),
    ],
)
def test_a_picture_that_is_what_it_says_is_kept(mime: str, data: bytes) -> None:
    assert check_picture(mime, encoded(data), LIMITS) == data


def test_white_space_in_base64_is_ignored() -> None:
    assert check_picture("image/png", base64.encodebytes(PNG).decode(), LIMITS) == PNG
    assert check_picture("image/png", f" {encoded(PNG)}\r\n", LIMITS) == PNG


def test_white_space_that_cuts_base64_into_millions_of_pieces_costs_no_memory() -> None:
    text = "ab " * (2 * MIB)
    tracemalloc.start()
    with pytest.raises(PictureRefused):
        check_picture("image/png", text, LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * len(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="None"),
        pytest.param(5, id="number"),
        pytest.param([encoded(PNG)], id="list"),
        pytest.param({}, id="dict"),
        pytest.param(PNG, id="bytes"),
        pytest.param("not base64!", id="other characters"),
        pytest.param(encoded(PNG)[:-1], id="wrong padding"),
        pytest.param(encoded(PNG) + "é", id="not ASCII"),
        pytest.param("\ud800", id="lone surrogate"),
    ],
)
def test_what_is_not_base64_is_refused(text: object) -> None:
    with pytest.raises(PictureRefused, match=r"^not base64 text$"):
        check_picture("image/png", text, LIMITS)


@pytest.mark.parametrize(
    ("mime", "data"),
    [
        pytest.param("image/png", b"", id="empty PNG"),
        pytest.param("image/jpeg", b"", id="empty JPEG"),
        pytest.param("image/png", b"<svg/>", id="SVG as PNG"),
        pytest.param("image/png", JPEG, id="JPEG as PNG"),
        pytest.param("image/jpeg", PNG, id="PNG as JPEG"),
        pytest.param("image/png", picture("GIF"), id="GIF as PNG"),
        pytest.param("image/png", PNG[:8], id="only the PNG magic"),
        pytest.param("image/png", PNG[:32], id="PNG cut off in its header"),
        pytest.param("image/png", PNG[:12] + b"IDAT" + PNG[16:], id="PNG without a header first"),
        pytest.param("image/png", png_of(0, 5), id="PNG of no width"),
        pytest.param("image/png", png_of(5, 0), id="PNG of no height"),
        pytest.param("image/jpeg", JPEG[:3], id="only the JPEG magic"),
        pytest.param("image/jpeg", JPEG[: JPEG.index(b"\xff\xc0") + 6], id="JPEG cut off in its frame header"),
        pytest.param("image/jpeg", jpeg_of(0, 5), id="JPEG of no width"),
        pytest.param("image/jpeg", jpeg_of(5, 0), id="JPEG of no height"),
        pytest.param("image/jpeg", b"\xff\xd8\xff\xe0\x00\x00" + b"\0" * 50, id="JPEG segment of length zero"),
        pytest.param("image/jpeg", b"\xff\xd8" + b"\xff\xe0\x00\x02" * 1000, id="JPEG without a frame"),
        pytest.param("image/jpeg", segments(1000), id="JPEG of too many segments"),
        pytest.param("image/jpeg", JPEG[:3] + b"\xff" * 1000 + JPEG[3:], id="JPEG of too many fill bytes"),
        pytest.param("image/gif", picture("GIF")[:13], id="GIF cut off in its header"),
        pytest.param("image/gif", b"GIF90a" + picture("GIF")[6:], id="no GIF"),
        pytest.param("image/gif", gif_of(0, 5), id="GIF of no width"),
        pytest.param("image/gif", gif_of(5, 0), id="GIF of no height"),
    ],
)
def test_what_is_no_such_picture_is_refused(mime: str, data: bytes) -> None:
    with pytest.raises(PictureRefused, match=f"^not {mime}$"):
        check_picture(mime, encoded(data), LIMITS)


@pytest.mark.parametrize(
    ("mime", "data", "words"),
    [
        pytest.param("image/png", png_of(60_000, 60_000), "60000 x 60000 pixels", id="PNG"),
        pytest.param("image/png", png_of(2**32 - 1, 2**32 - 1), "4294967295 x", id="PNG of the largest size"),
        pytest.param("image/png", png_of(25_000_001, 1), "25000001 x 1 pixels", id="PNG one pixel too large"),
        pytest.param("image/gif", gif_of(65_535, 65_535), "65535 x 65535 pixels", id="GIF"),
        pytest.param("image/jpeg", jpeg_of(65_535, 65_535), "65535 x 65535 pixels", id="JPEG"),
        pytest.param("image/jpeg", jpeg_of(60_000, 50_000, progressive=True), "60000 x 50000", id="progressive JPEG"),
    ],
)
def test_too_many_pixels_are_refused(mime: str, data: bytes, words: str) -> None:
    with pytest.raises(PictureRefused, match=f"{words}.*more than 25,000,000"):
        check_picture(mime, encoded(data), LIMITS)


@pytest.mark.parametrize("over", [1, 500, 5000])
def test_too_many_bytes_are_refused(over: int) -> None:
    data = noise(60)
    with pytest.raises(PictureRefused, match="larger than"):
        check_picture("image/png", encoded(data), Limits(max_image_bytes=len(data) - over))


def test_exactly_the_most_bytes_are_kept_however_the_base64_is_wrapped() -> None:
    data = noise(200)
    limits = Limits(max_image_bytes=len(data))
    assert check_picture("image/png", encoded(data), limits) == data
    assert check_picture("image/png", base64.encodebytes(data).decode(), limits) == data


@given(st.sampled_from(["image/png", "image/jpeg"]), st.sampled_from([b"", PNG[:8], b"\xff\xd8\xff"]), st.binary())
def test_no_bytes_raise_anything_else(mime: str, magic: bytes, rest: bytes) -> None:
    with contextlib.suppress(PictureRefused):
        assert check_picture(mime, encoded(magic + rest), LIMITS) == magic + rest
