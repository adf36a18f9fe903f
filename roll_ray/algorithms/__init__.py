"""Advantages, losses and how they are aggregated. Importing this package loads no torch.

A new advantage estimator is one function in `advantages` with `@estimator("name")`; a new policy loss is
one function in `losses` with `@policy_loss("name", needs=...)`.
"""
