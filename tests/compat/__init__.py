"""What PyTorch users combine a module with: each feature, guarded and plain, compared."""
