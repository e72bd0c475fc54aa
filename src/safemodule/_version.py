"""The version, in one place: the build reads this file, and the package re-exports the name."""

from __future__ import annotations

__version__ = "0.1.0"
