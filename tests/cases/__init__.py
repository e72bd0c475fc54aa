"""Modules from public reports of arguments that were written, each with what it does to its caller."""
