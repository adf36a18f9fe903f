"""The entropy bonus: its value, and its gradient down to the logits."""

from __future__ import annotations

import pytest
import torch

from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.sample import Role
from tests.roll_ray.loss_cases import batch_of
from workers.token_logprobs import token_logprobs

ROLES = [[Role.PROMPT, Role.POLICY, Role.ENVIRONMENT, Role.POLICY], [Role.PROMPT, Role.POLICY, Role.POLICY]]
POLICY = [1, 3, 5, 6]


def entropies(logits_T_V: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=logits_T_V).entropy()


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_it_is_subtracted_with_the_weights_of_the_loss_and_pulls_at_policy_tokens_only(aggregation) -> None:
    batch = batch_of([0.0, -1.0, 0.0, -2.0], [0.0, -1.0, -1.0], advantages=[0.0, 0.0], roles=ROLES)
    entropy_T = torch.linspace(0.1, 0.7, 7).requires_grad_()
    logprobs_T = torch.tensor(batch.logprobs_T, requires_grad=True)
    loss = build_loss(LossSettings(aggregation=aggregation, entropy_coefficient=0.25))
    result = loss(loss.tensors(batch), PolicyOutput(logprobs_T, entropy_T))
    result.loss.backward()
    weights = {"token_mean": [1.0] * 4, "seq_mean_token_mean": [0.5] * 4}[aggregation]
    expected = torch.zeros(7)
    expected[POLICY] = -0.25 * torch.tensor(weights)
    assert result.loss.item() == pytest.approx((expected * entropy_T).sum().item(), rel=1e-6)
    assert entropy_T.grad is not None
    assert entropy_T.grad.tolist() == pytest.approx(expected.tolist())
    assert logprobs_T.grad is not None
    assert not logprobs_T.grad.any(), "advantages of 0 and no term but the entropy"


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_gradient_of_the_entropy_reaches_the_head_and_the_hidden_states(temperature) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(5, 7, bias=False)
    hidden = torch.randn(4, 5, requires_grad=True)
    targets, temperatures = torch.tensor([0, 3, 6, 2]), torch.full((4,), temperature)
    _, entropy_N = token_logprobs(head, hidden, targets, temperatures, entropy_gradient=True)
    ours = torch.autograd.grad(entropy_N.sum(), (hidden, head.weight))
    theirs_N = entropies(head(hidden) / temperature)
    theirs = torch.autograd.grad(theirs_N.sum(), (hidden, head.weight))
    assert entropy_N.tolist() == pytest.approx(theirs_N.tolist(), rel=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_without_a_coefficient_the_entropy_has_no_gradient() -> None:
    head = torch.nn.Linear(5, 7, bias=False)
    _, entropy_N = token_logprobs(head, torch.randn(4, 5), torch.tensor([0, 3, 6, 2]), torch.ones(4))
    assert not entropy_N.requires_grad


def test_a_backend_that_gives_no_gradient_for_it_is_refused() -> None:
    batch = batch_of([0.0, -1.0], advantages=[1.0], roles=[[Role.PROMPT, Role.POLICY]])
    loss = build_loss(LossSettings(entropy_coefficient=0.25))
    logprobs_T = torch.zeros(2, requires_grad=True)
    for entropy_T in (None, torch.ones(2)):
        with pytest.raises(ValueError, match="with its gradient"):
            loss(loss.tensors(batch), PolicyOutput(logprobs_T, entropy_T))
