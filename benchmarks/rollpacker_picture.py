"""The picture of docs/rollpacker.md: what 32 devices do in one period of tail batching, and in as many plain steps.

    python -m benchmarks.rollpacker_picture docs/rollpacker.svg

Needs matplotlib (`make envs`). Simulated: the 14B set-up of RollPacker's evaluation (roll-ray simulate paper), seed 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recipes.simulate_paper import ROLLPACKER, STRONG, VERL, System, paper_setup

PERIOD = 5
TITLES = {
    VERL.name: "Synchronous, rewards after the rollout",
    STRONG.name: "Synchronous, rewards during it, stream training",
    ROLLPACKER.name: "tail batching, rewards during it, stream training: four short rounds, one long",
}


def draw(axes: Axes, system: System) -> float:
    """One panel; the time at which its steps are done, in virtual seconds."""
    setup = paper_setup("14B")
    simulation = setup.simulation(
        system.scheduler,
        rewards_after_rollout=system.rewards_after_rollout,
        adaptive_timeouts=system.adaptive_timeouts,
        stream=system.stream,
        trace_resolution_s=3.0,
    )
    records = simulation.run(PERIOD)
    seconds = [point.t_s for point in simulation.trace]
    generating = [point.generating_devices for point in simulation.trace]
    both = [point.generating_devices + point.training_devices for point in simulation.trace]
    axes.fill_between(seconds, generating, step="post", color="#2563eb", label="generate", linewidth=0)
    axes.fill_between(
        seconds, generating, both, step="post", color="#f59e0b", label="held for training", linewidth=0
    )
    for record in records[1:]:
        axes.axvline(record.starts_s, color="#475569", linewidth=0.6, linestyle=":")
    axes.set(
        title=f"{TITLES[system.name]}: {records[-1].ends_s:,.0f} s", ylim=(0, setup.devices), ylabel="devices"
    )
    axes.title.set(fontsize=10, ha="left", x=0)
    axes.spines[["top", "right"]].set_visible(False)
    return records[-1].ends_s


def main(path: Path) -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "roll-ray", "font.size": 9, "svg.fonttype": "none"})
    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    ends_s = [draw(axes, system) for axes, system in zip(panels, (VERL, STRONG, ROLLPACKER), strict=True)]
    panels[0].set_xlim(0, max(ends_s))
    panels[-1].set_xlabel(
        "virtual seconds of five steps (14B, 128 prompts x 8 responses, 32 H800; simulated)"
    )
    panels[1].legend(loc="upper right", frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
