"""Tests of the mirrored place of the Python doors."""
