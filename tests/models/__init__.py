"""Whole model architectures of transformers, tiny and random: run by hand (`make models`)."""
