"""Trainer backends: how a model is sharded, how its gradients are summed and its optimizer is stepped."""
