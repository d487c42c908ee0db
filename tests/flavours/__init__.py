"""Tests of single flavours of the image, which `scripts/try flavours` runs when it has built them; the suite does not."""
