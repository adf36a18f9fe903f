"""verl's algorithm functions, from the public wheel, installed beside the environment and never in it.

Only the files that hold the functions are run: `core_algos`, `torch_functional`, `groupwise` and what they need of
verl. The packages around them, which pull in the whole of verl at import, are left empty, and four imports
that the compared functions use for type hints or look-ups only are replaced: omegaconf.DictConfig,
tensordict.TensorDict, verl's device look-up (always "cpu") and verl's two settings classes (`Config` below, with
verl's own defaults for what the functions read).
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = "0.9.1"


@dataclass
class Config:
    """What the compared functions read of verl's ActorConfig and AlgoConfig."""

    clip_ratio: float = 0.2
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    gamma: float = 1.0
    policy_loss: types.SimpleNamespace = field(default_factory=types.SimpleNamespace)
    global_batch_info: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


class OtherConfig:
    """Stands for verl's AlgoConfig in its checks of types."""


def target_folder() -> Path:
    from roll_ray.home import home

    folder = home() / "benchmarks" / f"verl-{VERSION}"
    if not (folder / "verl").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"verl=={VERSION}"], check=True)
    return folder


def core_algos() -> Any:
    """verl.trainer.ppo.core_algos."""
    root = target_folder()
    for name in ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo", "verl.workers"):
        _module(name).__path__ = [str(root.joinpath(*name.split(".")))]
    _module("omegaconf").DictConfig = dict
    _module("tensordict").TensorDict = dict
    device = _module("verl.utils.device")
    device.get_device_name, device.get_torch_device = lambda: "cpu", lambda: None
    _module("verl.trainer.config").AlgoConfig = OtherConfig
    _module("verl.workers.config").ActorConfig = Config
    groupwise = importlib.import_module("verl.utils.groupwise")
    utils: Any = sys.modules["verl.utils"]
    utils.as_torch_index, utils.group_mean_std = groupwise.as_torch_index, groupwise.group_mean_std
    return importlib.import_module("verl.trainer.ppo.core_algos")


def _module(name: str) -> Any:
    return sys.modules.setdefault(name, types.ModuleType(name))
