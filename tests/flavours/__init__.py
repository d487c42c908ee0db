"""Tests of single flavours of the image, which `scripts/try flavours` runs after building them; the suite does not."""
