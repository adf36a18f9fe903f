"""What a person sees while a run goes on: a live panel in a terminal, else one line a step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from roll_ray.tracking.metrics import Value


class Display(Protocol):
    """Told what happens; shows it."""

    def phase(self, name: str) -> None: ...

    def step(self, step: int, metrics: Mapping[str, Value]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def open_display(
    max_steps: int,
    first_step: int,
    console: Console | None = None,
    *,
    known: Mapping[str, Value] | None = None,
) -> Display:
    """The live panel when the console is a terminal, else lines. `first_step` is the last step already done;
    `known` are figures that stay as they are until they are measured again."""
    console = console or Console()
    progress = Progress(max_steps, first_step)
    progress.last |= known or {}
    return LiveDisplay(console, progress) if console.is_terminal else LineDisplay(console, progress)


class Progress:
    """Where the run is, and how long the rest takes if it goes on like the last steps (`window` of them)."""

    def __init__(
        self, max_steps: int, first_step: int, clock: Callable[[], float] = time.monotonic, window: int = 20
    ) -> None:
        self.max_steps, self.done = max_steps, first_step
        self.last: dict[str, Value] = {}
        self._clock = clock
        self._times_s: deque[tuple[int, float]] = deque([(first_step, clock())], maxlen=window + 1)

    def step(self, step: int, metrics: Mapping[str, Value]) -> None:
        self.done = step
        self.last |= {name: value for name, value in metrics.items() if value is not None}
        self._times_s.append((step, self._clock()))

    def left_s(self) -> float | None:
        """Seconds to the end; None before the first step."""
        (first, first_s), (last, last_s) = self._times_s[0], self._times_s[-1]
        return None if last == first else (self.max_steps - last) * (last_s - first_s) / (last - first)

    def figures(self) -> list[tuple[str, str]]:
        """What is shown of the last step, labels and texts."""
        left_s = self.left_s()
        return [
            ("step", f"{self.done}/{self.max_steps}"),
            ("reward", self._text("reward_mean", ".3f")),
            ("held-out accuracy", self._text("heldout_accuracy", ".3f")),
            ("tokens/s", self._text("tokens_per_s", ",.0f")),
            ("engine-trainer difference", self._text("logprob_difference_max", ".1e")),
            ("time left", "-" if left_s is None else duration(left_s)),
        ]

    def _text(self, name: str, form: str) -> str:
        value = self.last.get(name)
        return "-" if value is None else format(value, form)


class LineDisplay:
    """One line a step, for logs."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console, self._progress = console, progress

    def phase(self, name: str) -> None:
        """Phases are not worth a line."""

    def step(self, step: int, metrics: Mapping[str, Value]) -> None:
        self._progress.step(step, metrics)
        self.say("  ".join(f"{label} {text}" for label, text in self._progress.figures()))

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()

    def close(self) -> None:
        """Every line is out already."""


class LiveDisplay:
    """A panel that is drawn anew; what is said scrolls by above it."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._progress, self._phase = progress, "starting"
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4)
        self._live.start()

    def phase(self, name: str) -> None:
        self._phase = name

    def step(self, step: int, metrics: Mapping[str, Value]) -> None:
        self._progress.step(step, metrics)
        self._live.refresh()

    def say(self, text: str) -> None:
        self._live.console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _panel(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        for label, text in [("phase", self._phase), *self._progress.figures()]:
            table.add_row(Text(label, style="dim"), Text(text))
        table.add_row(
            "", ProgressBar(total=self._progress.max_steps, completed=self._progress.done, width=40)
        )
        return Panel(table, title="roll-ray", title_align="left", expand=False)


def duration(seconds: float) -> str:
    """1:05 for 65 s, 2:00:00 for two hours."""
    minutes, rest_s = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest_s:02d}" if hours else f"{minutes}:{rest_s:02d}"
