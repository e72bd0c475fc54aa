"""Random programs for Hypothesis."""

from __future__ import annotations

import functools

from hypothesis import reject
from hypothesis import strategies as st

from tests.programs.memory import Undefined
from tests.programs.writer import Writer


@functools.cache
def _below(n):
    return st.integers(0, n - 1)


@st.composite
def programs(draw):
    """Draw a program that the reference gives a meaning."""
    try:
        return Writer(lambda n: draw(_below(n)) if n > 1 else 0).program()
    except Undefined:
        reject()
