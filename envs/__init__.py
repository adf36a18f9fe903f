"""Tasks and verifiers: prompts, environments, reward functions. No Ray, no torch."""
