"""The PNG that figures are written as: read again by Pillow."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from agent_tools.guest.kernel.png import png


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([3, 4]), st.integers(0, 2**32 - 1))
def test_the_pixels_are_read_as_they_were_written(height: int, width: int, channels: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    read = Image.open(io.BytesIO(png(pixels, 72.0, "")))
    assert read.mode == ("RGB" if channels == 3 else "RGBA")
    assert np.array_equal(np.asarray(read), pixels)


def test_a_line_is_the_difference_to_the_one_above_around_the_end_of_a_byte() -> None:
    pixels = np.array([[[255, 0, 7]], [[0, 255, 7]]], np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(pixels, 72.0, "")))), pixels)


@pytest.mark.parametrize("dpi", [72.0, 100.0, 333.3])
def test_the_resolution_and_the_software_are_told(dpi: float) -> None:
    read = Image.open(io.BytesIO(png(np.zeros((2, 3, 3), np.uint8), dpi, "Matplotlib version3.11")))
    assert read.size == (3, 2)
    assert read.info["dpi"] == pytest.approx((dpi, dpi), abs=0.03)
    assert read.info["Software"] == "Matplotlib version3.11"


def test_a_drawing_takes_no_more_room_than_pillows_does_by_a_tenth() -> None:
    pixels = np.full((400, 600, 3), 255, np.uint8)
    pixels[50:350, 80] = pixels[350, 80:560] = 0
    for x in range(80, 560):
        pixels[340 - x // 2, x] = (31, 119, 180)
    theirs = io.BytesIO()
    Image.fromarray(pixels).save(theirs, format="png")
    assert len(png(pixels, 100.0, "")) < 1.1 * len(theirs.getvalue())
