"""Runnable programs and the command line: each recipe composes pools, a scheduler and an environment."""
