"""What training takes, and how much of it streaming hides behind the rollout."""

from __future__ import annotations

from dataclasses import dataclass

from schedulers.simulator.profiles import Hardware, ModelShape


@dataclass(frozen=True, slots=True)
class TrainingCosts:
    """`token_s` device-seconds for each token (backward, recomputed activations, reference and actor
    log-probabilities), `fixed_s` a step (optimizer, loading and offloading of states), `update_s` for the weights to
    reach the engines."""

    token_s: float
    fixed_s: float
    update_s: float

    @staticmethod
    def of(
        model: ModelShape, hardware: Hardware, flops_share: float, fixed_s: float, update_s: float
    ) -> TrainingCosts:
        """6 FLOP a parameter and token for forward and backward, 2 for activations computed again, 2 for the
        reference's log-probabilities; old log-probabilities are the trainer's own (one optimizer step a batch)."""
        return TrainingCosts(10 * model.parameters / (hardware.peak_flops * flops_share), fixed_s, update_s)

    def batch_s(self, tokens: float, devices: int) -> float:
        """A batch on all devices, without its fixed part."""
        return self.token_s * tokens / devices


class StreamedTraining:
    """Gradients on freed devices while the rest generates: parts are worked off in order of arrival, without an
    optimizer step (RollPacker, 2509.21009, section 4.4)."""

    def __init__(self, costs: TrainingCosts, devices: int, starts_s: float) -> None:
        """`starts_s` is when the freed devices hold the trainer's weights."""
        self._costs, self._devices = costs, devices
        self._parts: list[tuple[float, float]] = []  # when its training ends, tokens
        self._free_s = starts_s

    @property
    def devices(self) -> int:
        return self._devices

    def part(self, t_s: float, tokens: float) -> None:
        """Complete samples of the batch are there at `t_s`."""
        self._free_s = max(self._free_s, t_s) + self._costs.token_s * tokens / self._devices
        self._parts.append((self._free_s, tokens))

    def tokens_done(self, t_s: float) -> float:
        """Tokens trained by `t_s`, the part under way by its share: micro-batches are small beside a part."""
        done = 0.0
        for ends_s, tokens in self._parts:
            seconds = self._costs.token_s * tokens / self._devices
            done += tokens * min(1.0, max(0.0, 1.0 - (ends_s - t_s) / seconds))
        return done
