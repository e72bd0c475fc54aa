"""What type checkers see of the public API: checked by pyright and mypy, never run.

A line that a checker must refuse says so: ``# type: ignore[...]`` for mypy and
``# pyright: ignore[...]`` for pyright. Both report such a comment where nothing is refused.
"""
