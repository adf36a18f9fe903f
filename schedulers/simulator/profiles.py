"""Devices and models as numbers, and what an engine of one on the other costs.

Devices: NVIDIA's data sheets (dense bfloat16 rate, HBM size and bandwidth, NVLink in both directions together);
for the H800 and H20 export variants the figures that vendors list. Models: the `config.json` of Qwen2.5-7B, -14B,
-32B and Qwen3-8B. The shares of the peak that a kernel reaches are ours, in `KernelShares`, for every device.
"""

from __future__ import annotations

from dataclasses import dataclass

from schedulers.simulator.step_time import StepCosts


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device and its node."""

    name: str
    peak_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    devices_per_node: int
    all_reduce_latency_s: float
    """Of a small all-reduce within a node: launch and synchronisation."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder: weights and KV cache are kept in `value_bytes` a value."""

    name: str
    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head_size: int
    value_bytes: int = 2

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.value_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """A key and a value for each layer."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.value_bytes


@dataclass(frozen=True, slots=True)
class KernelShares:
    """Shares of a device's peak that kernels reach, and what an engine adds around them.

    `overhead_s` is an engine's time for a step beside its kernels (scheduling, input preparation, sampling), with
    `group_overhead_s` more where a tensor-parallel group has to be kept in step, and `request_overhead_s` for each
    running request. `memory_share` of a device's memory is vLLM's
    `gpu_memory_utilization`, of which `activation_bytes` a device are not for weights and KV cache.
    """

    bandwidth_share: float = 0.8
    compute_share: float = 0.5
    overhead_s: float = 4e-3
    group_overhead_s: float = 6e-3
    request_overhead_s: float = 15e-6
    memory_share: float = 0.85
    activation_bytes: float = 3e9


_NVLINK_LATENCY_S = (
    12e-6  # custom all-reduce of a few KB within an NVLink domain, as engines' benchmarks report
)

HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware("H100", 989e12, 80e9, 3.35e12, 900e9, 8, _NVLINK_LATENCY_S),
        Hardware("H800", 989e12, 80e9, 3.35e12, 400e9, 8, _NVLINK_LATENCY_S),  # H100 with 400 GB/s of NVLink
        Hardware("H200", 989e12, 141e9, 4.8e12, 900e9, 8, _NVLINK_LATENCY_S),
        Hardware("H20", 148e12, 96e9, 4.0e12, 900e9, 8, _NVLINK_LATENCY_S),
        # One core of two: some 50 GFLOP/s in float32, and half of what the memory of such a machine streams.
        Hardware("cpu2", 50e9, 8e9, 8e9, 8e9, 2, 50e-6),
    )
}

MODELS: dict[str, ModelShape] = {
    m.name: m
    for m in (
        ModelShape("qwen2.5-7b", 7.62e9, 28, 3584, 4, 128),
        ModelShape("qwen2.5-14b", 14.77e9, 48, 5120, 8, 128),
        ModelShape("qwen2.5-32b", 32.76e9, 64, 5120, 8, 128),
        ModelShape("qwen3-8b", 8.19e9, 36, 4096, 8, 128),
    )
}


def step_costs(
    model: ModelShape, hardware: Hardware, tensor_parallel: int, shares: KernelShares | None = None
) -> StepCosts:
    """Costs of a replica on `tensor_parallel` devices.

    A step reads the weights once, a request adds 2 FLOP a parameter, a token of context adds the reading of its keys
    and values; with tensor parallelism all three are divided, and two all-reduces a layer are added. The sum of what is
    bound by memory and by compute is an upper bound of a step, at most twice the larger.
    """
    s, tp = shares or KernelShares(), tensor_parallel
    bandwidth = hardware.memory_bytes_per_s * s.bandwidth_share * tp
    compute = hardware.peak_flops * s.compute_share * tp
    reduces = 2 * model.layers if tp > 1 else 0
    reduce_bytes = 2 * (tp - 1) / tp * model.hidden * model.value_bytes
    reduce_token_s = reduces * reduce_bytes / hardware.link_bytes_per_s
    return StepCosts(
        base_s=s.overhead_s
        + (s.group_overhead_s if tp > 1 else 0.0)
        + model.weight_bytes / bandwidth
        + reduces * hardware.all_reduce_latency_s,
        request_s=s.request_overhead_s + 2 * model.parameters / compute + reduce_token_s,
        context_token_s=model.kv_bytes_per_token / bandwidth,
        prefill_token_s=2 * model.parameters / compute + reduce_token_s,
    )


def kv_capacity_tokens(
    model: ModelShape, hardware: Hardware, tensor_parallel: int, shares: KernelShares | None = None
) -> int:
    """Tokens that fit beside the weights. Raises ValueError when the weights alone do not."""
    s = shares or KernelShares()
    per_device = hardware.memory_bytes * s.memory_share - s.activation_bytes
    room = per_device * tensor_parallel - model.weight_bytes
    if room <= 0:
        raise ValueError(
            f"{model.name} does not fit on {tensor_parallel} {hardware.name}: its weights take "
            f"{model.weight_bytes / 1e9:.0f} GB of {per_device * tensor_parallel / 1e9:.0f} GB"
        )
    return int(room / model.kv_bytes_per_token)
