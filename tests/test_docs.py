"""The pages of docs/ agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEVICE = (
    "A device is a GPU, or on a CPU machine a slot of the custom Ray resource `device`; "
    "on a CPU cluster without that resource, a CPU."
)


def test_a_device_is_defined_in_the_same_words_wherever_it_is_defined() -> None:
    defined_in = set()
    for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        text = " ".join(page.read_text(encoding="utf-8").split())
        assert len(re.findall(r"devices? (?:is|are) (?:a|the|its|each)\b", text, re.I)) == text.count(
            DEVICE
        ), page
        if DEVICE in text:
            defined_in.add(page.name)
    assert {"concepts.md", "settings.md", "getting_started.md", "multi_node.md"} <= defined_in
