"""What is wrong with a model folder is said before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roll_ray.errors import RollRayError
from workers.engine_spec import EngineSpec, check_model_folder, engine_arguments

GOOD = {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 32, "max_position_embeddings": 512}


def folder(path: Path, **config: Any) -> str:
    (path / "config.json").write_text(json.dumps(GOOD | config))
    (path / "model.safetensors").touch()
    return str(path)


def test_a_good_folder_and_a_hub_name_pass(tmp_path: Path) -> None:
    check_model_folder(EngineSpec(folder(tmp_path), max_model_len=512))
    check_model_folder(EngineSpec("Qwen/Qwen2.5-0.5B"))


@pytest.mark.parametrize(
    ("config", "setting", "words"),
    [
        ({"head_dim": 16}, {}, "heads of size 16"),
        ({"head_dim": None, "num_attention_heads": 8}, {}, "heads of size 16"),
        ({}, {"tensor_parallel": 3}, "4 attention heads cannot be shared by tensor_parallel=3"),
        ({}, {"max_model_len": 1024}, "a context of 1024 tokens is asked for"),
    ],
)
def test_what_the_engine_cannot_run_is_named(
    tmp_path: Path, config: dict[str, Any], setting: dict[str, Any], words: str
) -> None:
    with pytest.raises(RollRayError, match=words):
        check_model_folder(EngineSpec(folder(tmp_path, **config), **setting))


def test_head_size_16_is_only_the_cpus_trouble(tmp_path: Path) -> None:
    check_model_folder(EngineSpec(folder(tmp_path, head_dim=16), device="gpu"))


def test_missing_folder_config_and_weights_are_three_errors(tmp_path: Path) -> None:
    with pytest.raises(RollRayError, match="does not exist"):
        check_model_folder(EngineSpec(str(tmp_path / "nowhere")))
    with pytest.raises(RollRayError, match=r"no config\.json"):
        check_model_folder(EngineSpec(str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RollRayError, match="cannot be read"):
        check_model_folder(EngineSpec(str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    with pytest.raises(RollRayError, match="has no weights"):
        check_model_folder(EngineSpec(str(tmp_path)))


def test_seeded_requests_are_never_split_on_cpu() -> None:
    assert engine_arguments(EngineSpec("m", seeded_requests=True))["enable_chunked_prefill"] is False
    long = engine_arguments(EngineSpec("m", seeded_requests=True, max_model_len=32768))
    assert long["max_num_batched_tokens"] >= 32768


def test_a_gpu_engine_sleeps_only_where_it_shares_the_gpu() -> None:
    own = engine_arguments(EngineSpec("m", device="gpu", weight_backend="nccl", gpu_memory_utilization=0.4))
    assert own["gpu_memory_utilization"] == 0.4
    assert own["weight_transfer_config"] == {"backend": "nccl"}
    assert not own["enable_sleep_mode"]
    assert engine_arguments(EngineSpec("m", device="gpu", weight_backend="ipc", sleeps=True))[
        "enable_sleep_mode"
    ]
    assert "enable_sleep_mode" not in engine_arguments(EngineSpec("m"))
