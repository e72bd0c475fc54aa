"""Long sweeps; each module has a `main(argv)` that prints one line and returns an exit code."""
