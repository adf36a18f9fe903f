"""load_prompts: layouts, counts, and errors that say where."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roll_ray.boxed import UnclosedBox, last_box
from roll_ray.data import load_prompts
from roll_ray.errors import DataError
from roll_ray.sample import Prompt

GSM8K = {"question": "Natalia sold clips.", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 72"}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Find x."}],
    "reward_model": {"ground_truth": "34", "style": "rule"},
    "extra_info": {"index": "9a9b"},
}
MATH = {
    "problem": "What is half?",
    "level": "Level 3",
    "type": "Algebra",
    "solution": r"First \boxed{0}, then $\boxed{\frac{1}{2}}$.",
    "answer": "damaged",
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load_one(tmp_path: Path, row: Any, **options: Any) -> Prompt:
    (prompt,) = load_prompts(write(tmp_path / "data.jsonl", row), **options).prompts
    return prompt


def test_gsm8k_takes_what_follows_the_hashes(tmp_path: Path) -> None:
    prompt = load_one(tmp_path, GSM8K)
    assert (prompt.text, prompt.reference, prompt.domain) == ("Natalia sold clips.", "72", "maths")


def test_dapo_takes_the_ground_truth(tmp_path: Path) -> None:
    prompt = load_one(tmp_path, DAPO)
    assert prompt.messages == ({"role": "user", "content": "Find x."},)
    assert (prompt.reference, prompt.domain, prompt.info["data_source"]) == ("34", "maths", "math_dapo")


def test_math_takes_the_last_box_of_the_solution(tmp_path: Path) -> None:
    prompt = load_one(tmp_path, MATH)
    assert (prompt.text, prompt.reference) == ("What is half?", r"\frac{1}{2}")
    assert prompt.info["level"] == "Level 3"
    assert load_one(tmp_path, {"problem": "p", "answer": 3}).reference == "3"


@pytest.mark.parametrize("as_string", [False, True])
def test_messages_as_list_or_json_string(tmp_path: Path, as_string: bool) -> None:
    messages: Any = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    row = {"messages": json.dumps(messages) if as_string else messages, "answer": 5}
    prompt = load_one(tmp_path, row)
    assert prompt.messages == tuple(messages)
    assert prompt.reference == "5"
    dapo_as_string = {**DAPO, "prompt": json.dumps(DAPO["prompt"]), "reward_model": '{"ground_truth": 34}'}
    assert load_one(tmp_path, dapo_as_string).reference == "34"


def test_an_assistant_message_at_the_end_is_the_reference(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    prompt = load_one(tmp_path, {"messages": messages})
    assert prompt.messages == (messages[0],)
    assert prompt.reference == "a"


@pytest.mark.parametrize(
    ("given", "read"), [("3", 3.0), (3, 3.0), (0.25, 0.25), (None, None), ("hard", "hard")]
)
def test_difficulty_of_any_type_is_read(tmp_path: Path, given: Any, read: Any) -> None:
    prompt = load_one(tmp_path, {"prompt": "p", "answer": "a", "difficulty": given})
    assert prompt.info["difficulty"] == read


def test_one_file_may_mix_difficulty_types(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "answer": "a", "difficulty": d} for i, d in enumerate(["1", 1, 1.0, None])]
    loaded = load_prompts(write(tmp_path / "d.jsonl", *rows))
    assert [p.info["difficulty"] for p in loaded.prompts] == [1.0, 1.0, 1.0, None]


def test_a_question_becomes_a_chat_on_demand(tmp_path: Path) -> None:
    prompt = load_one(tmp_path, GSM8K, as_chat=True, suffix=" Box the answer.")
    assert prompt.messages == ({"role": "user", "content": "Natalia sold clips. Box the answer."},)


def test_a_broken_line_is_named_with_file_and_number(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text(json.dumps(GSM8K) + "\n\n" + '{"question": "x", \n')
    with pytest.raises(DataError, match=r"broken\.jsonl, line 3 is not JSON"):
        load_prompts(file)
    file.write_bytes(json.dumps(GSM8K).encode() + b'\n{"question": "\xff"}\n')
    with pytest.raises(DataError, match=r"broken\.jsonl, line 2 is not JSON"):
        load_prompts(file)
    file.write_text('["a list"]\n')
    with pytest.raises(DataError, match="line 1 is a list, not an object"):
        load_prompts(file)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            b'{"question": "x" "answer": "y"}',
            'Expecting \',\' delimiter, at column 18: {"question": "x"  >>> "answer": "y"}',
        ),
        (b'{"question": "x", ', 'enclosed in double quotes, at column 19: {"question": "x",  >>> (end)'),
        (b'{"question": "\xff"}', 'byte 0xff at column 15 is not UTF-8: {"question": " >>> \ufffd"}'),
    ],
)
def test_the_place_in_a_broken_line_is_shown(tmp_path: Path, line: bytes, why: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_bytes(json.dumps(GSM8K).encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match="line 2 is not JSON") as raised:
        load_prompts(file)
    assert why in raised.value.why


def test_of_a_long_broken_line_only_the_place_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"question": "' + "x" * 5000 + '" "answer": "' + "y" * 5000 + '"}\n')
    with pytest.raises(DataError) as raised:
        load_prompts(file)
    assert len(raised.value.why) < 150
    assert "column 5017: ..." in raised.value.why
    assert 'xx"  >>> "answer": "yy' in raised.value.why
    assert raised.value.why.endswith("...")


def test_a_broken_json_file_is_named_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text('[\n {"question": "x"},\n {"question" "y"}\n]\n')
    with pytest.raises(DataError) as raised:
        load_prompts(file)
    assert "at line 3, column 14" in raised.value.why


@pytest.mark.parametrize("path", ["./nowhere", "../nowhere", "/nowhere", "nowhere.jsonl", "a/b/c"])
def test_what_is_written_as_a_path_is_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"there is no file or folder {path}"):
        load_prompts(path)


def test_unknown_columns_are_listed_with_the_known_layouts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the columns completion, instruction") as raised:
        load_one(tmp_path, {"instruction": "x", "completion": "y"})
    assert "GSM8K: question, answer with ####" in str(raised.value)


def test_prompts_over_the_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * n, "answer": "a"} for n in (3, 5, 9)]
    file = write(tmp_path / "d.jsonl", *rows)
    loaded = load_prompts(file, max_prompt_tokens=5, length_of=lambda p: len(p.text or ""))
    assert [len(p.text or "") for p in loaded.prompts] == [3, 5]
    assert loaded.counts.too_long == 1
    assert loaded.counts.sentence() == "2 of 3 prompts, dropped: 1 over the length limit"
    with pytest.raises(DataError, match="set max_prompt_tokens to 3 or more"):
        load_prompts(file, max_prompt_tokens=2, length_of=lambda p: len(p.text or ""))


def test_repeated_rows_count_once_and_rows_without_reference_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "d.jsonl", GSM8K, GSM8K, {"prompt": "p"}, {"prompt": "q", "answer": None})
    loaded = load_prompts(file)
    assert (loaded.counts.read, loaded.counts.kept) == (4, 1)
    assert (loaded.counts.repeated, loaded.counts.without_reference) == (1, 2)
    assert load_prompts(file, needs_reference=False).counts.kept == 3
    with pytest.raises(DataError, match="no prompt is left"):
        load_prompts(write(tmp_path / "e.jsonl", {"prompt": "p"}))
    with pytest.raises(DataError, match="holds no rows"):
        load_prompts(write(tmp_path / "f.jsonl"))


def test_ids_are_given_or_follow_from_the_content(tmp_path: Path) -> None:
    assert load_one(tmp_path, {**GSM8K, "id": 17}).id == "17"
    one, again = load_one(tmp_path, GSM8K).id, load_one(tmp_path, {**GSM8K, "difficulty": 2}).id
    assert one == again
    assert one != load_one(tmp_path, {**GSM8K, "question": "Other?"}).id
    file = write(tmp_path / "d.jsonl", {**GSM8K, "id": "a"}, {**MATH, "id": "a"})
    with pytest.raises(DataError, match=r"line 2: the id 'a' belongs to another prompt already, .*line 1"):
        load_prompts(file)


def test_a_folder_of_parquet_and_jsonl_is_read_in_order_of_path(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([DAPO]), folder / "b.parquet")
    write(folder / "a.jsonl", GSM8K)
    with gzip.open(folder / "sub" / "c.jsonl.gz", "wt") as file:
        file.write(json.dumps(MATH) + "\n")
    (folder / "README.md").write_text("not data")
    assert [p.reference for p in load_prompts(folder).prompts] == ["72", "34", r"\frac{1}{2}"]


def test_missing_damaged_and_empty_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file or folder"):
        load_prompts(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="there is no data file in"):
        load_prompts(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read"):
        load_prompts(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"x\.csv is not a data file"):
        load_prompts(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed 4.", "4"),
        (r"\boxed{}", ""),
        (r"\fbox{7}", None),
        ("none", None),
    ],
)
def test_the_last_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


def test_an_unclosed_last_box_is_not_an_earlier_one() -> None:
    with pytest.raises(UnclosedBox):
        last_box(r"\boxed{4} but rather \boxed{5")


def test_reading_jsonl_loads_neither_torch_nor_ray_nor_datasets(tmp_path: Path) -> None:
    file = write(tmp_path / "d.jsonl", GSM8K)
    program = (
        "import sys; from roll_ray.data import load_prompts; from roll_ray.data_stream import PromptStream;"
        f"PromptStream(load_prompts({str(file)!r}).prompts, 0).draw(3);"
        "print([m for m in ('torch', 'ray', 'datasets', 'pyarrow', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
