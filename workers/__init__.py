"""The actors of a run and the backends they use. Importing this package loads neither torch nor Ray nor vLLM."""
