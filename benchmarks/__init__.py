"""What is measured, and against whom. Run as modules from the repository: python -m benchmarks.NAME."""
