"""KL estimators: values and gradients by hand, and what each has to do with the KL of two distributions."""

import math

import pytest
import torch

from roll_ray.algorithms.kl import KL_ESTIMATORS
from tests.roll_ray.loss_cases import batch_of, evaluate

LOG2 = math.log(2.0)


@pytest.mark.parametrize(
    ("name", "values", "gradients"),
    [  # d = log 2, -log 2, 0, -1
        ("k1", [LOG2, -LOG2, 0, -1], [1, 1, 1, 1]),
        ("k2", [LOG2**2 / 2, LOG2**2 / 2, 0, 0.5], [LOG2, -LOG2, 0, -1]),
        ("k3", [LOG2 - 0.5, 1 - LOG2, 0, math.e - 2], [0.5, -1, 0, 1 - math.e]),
        ("abs", [LOG2, LOG2, 0, 1], [1, -1, 0, -1]),
        ("straight_through", [LOG2 - 0.5, 1 - LOG2, 0, math.e - 2], [LOG2, -LOG2, 0, -1]),
    ],
)
def test_by_hand(name, values, gradients):
    d_T = torch.tensor([LOG2, -LOG2, 0, -1], dtype=torch.float64)
    reference_T = torch.tensor([-1.0, -2, -3, -1.5], dtype=torch.float64)
    logprobs_T = (reference_T + d_T).requires_grad_()
    kl_T = KL_ESTIMATORS[name](logprobs_T, reference_T)
    assert kl_T.tolist() == pytest.approx(values, abs=1e-12)
    kl_T.sum().backward()
    assert logprobs_T.grad.tolist() == pytest.approx(gradients, abs=1e-12)


def test_over_a_whole_vocabulary_the_estimators_mean_what_their_docstrings_say():
    p_V = torch.softmax(torch.tensor([0.3, -0.5, 1.0, 0.0], dtype=torch.float64), 0)
    z_V = p_V.log().requires_grad_()
    lp_V = torch.log_softmax(z_V, 0)
    ref_V = torch.log_softmax(torch.tensor([0.0, 0.2, 0.5, -0.3], dtype=torch.float64), 0)
    kl = (lp_V.exp() * (lp_V - ref_V)).sum()
    (true_V,) = torch.autograd.grad(kl, z_V, retain_graph=True)

    def mean_gradient(name):
        mean = (p_V * KL_ESTIMATORS[name](lp_V, ref_V)).sum()  # the sampling is not differentiated
        return torch.autograd.grad(mean, z_V, retain_graph=True)[0].tolist()

    for name in ("k1", "k3", "straight_through"):
        mean = (p_V * KL_ESTIMATORS[name](lp_V, ref_V)).sum().item()
        assert mean == pytest.approx(kl.item(), rel=1e-9)
    for name in ("k2", "straight_through"):
        assert mean_gradient(name) == pytest.approx(true_V.tolist(), abs=1e-9)
    assert mean_gradient("k1") == pytest.approx([0.0] * 4, abs=1e-9)


@pytest.mark.parametrize("name", sorted(KL_ESTIMATORS))
@pytest.mark.parametrize("d", [-80.0, 80.0, 0.0])
def test_extreme_differences_are_finite_and_reported(name, d):
    batch = batch_of([-100.0], advantages=[0.0], reference_logprobs=[-100.0])
    value, grad_T, metrics = evaluate(batch, [-100.0 + d], kl_coefficient=0.5, kl_estimator=name)
    assert math.isfinite(value)
    assert math.isfinite(grad_T[0])
    assert metrics[f"kl_{name}_max"].value == metrics[f"kl_{name}"].value == pytest.approx(2 * value)
