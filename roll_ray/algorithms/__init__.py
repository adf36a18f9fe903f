"""Advantages, losses and how they are aggregated. Importing this package loads no torch.

A new advantage estimator is one function in `advantages` with `@estimator("name")`; a new policy loss is
one function with `@policy_loss("name", needs=...)` of `losses`, in `policy_losses` or in a file of one's own.
"""
