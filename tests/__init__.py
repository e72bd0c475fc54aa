"""Tests of safemodule; a package so that helpers import as `tests.zoo`."""
