"""From hidden states to log-probabilities of given tokens, with bounded memory for large vocabularies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

KEPT_LOGITS = 1 << 26
"""Up to so many logits are kept for the backward pass (256 MiB in float32); beyond, they are computed again."""
LOGITS_PER_CHUNK = 1 << 24


def token_logprobs(
    head: torch.nn.Module,
    hidden_N: torch.Tensor,
    targets_N: torch.Tensor,
    temperatures_N: torch.Tensor,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target under softmax(head(hidden) / temperature), and that softmax's entropy.

    Shapes: hidden [N, H]; targets, temperatures [N]; results float32 [N]. The entropy (nats) carries a gradient only
    with `entropy_gradient`. Logits are float32 from the head's output on, whatever the dtype of the model.
    """
    vocab_size = int(head.weight.shape[0])  # type: ignore[arg-type, union-attr]
    plain = bool((temperatures_N == 1).all())
    inverse_N = None if plain else temperatures_N.reciprocal()
    if hidden_N.shape[0] * vocab_size <= KEPT_LOGITS:
        return _chunk(head, hidden_N, targets_N, inverse_N, entropy_gradient)
    rows = max(1, LOGITS_PER_CHUNK // vocab_size)
    parts = [
        checkpoint(
            _chunk,
            head,
            hidden_N[i : i + rows],
            targets_N[i : i + rows],
            None if inverse_N is None else inverse_N[i : i + rows],
            entropy_gradient,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for i in range(0, hidden_N.shape[0], rows)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(
    head: torch.nn.Module,
    hidden_N: torch.Tensor,
    targets_N: torch.Tensor,
    inverse_N: torch.Tensor | None,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_N_V = head(hidden_N).float()
    if inverse_N is not None:
        logits_N_V = logits_N_V * inverse_N[:, None]
    log_softmax_N_V = F.log_softmax(logits_N_V, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = _entropy(log_softmax_N_V)
    return -F.nll_loss(log_softmax_N_V, targets_N, reduction="none"), entropy_N


def _entropy(log_softmax_N_V: torch.Tensor) -> torch.Tensor:
    """-sum p log p, [N], as one product a row: the vocabulary is not gone through more often than need be."""
    probabilities_N_V = log_softmax_N_V.exp()
    entropy_N = -torch.bmm(probabilities_N_V[:, None, :], log_softmax_N_V[:, :, None])[:, 0, 0]
    if torch.isfinite(entropy_N).all():
        return entropy_N
    # a logit of -inf: 0 x -inf is NaN there, and entr(0) is 0
    return torch.special.entr(probabilities_N_V).sum(-1)
