"""What safemodule costs, in time and memory, beside cloning inputs by hand."""
