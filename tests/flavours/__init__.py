"""Tests of single flavours of the image, which `scripts/flavours` runs when it has built them; the suite does not."""
