"""Turn by turn, a chat has the tokens that its template gives the whole conversation; what the policy wrote stays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.chat import PLACEHOLDER, Conversation
from envs.task import Observation
from roll_ray.errors import RollRayError
from workers.tokenizer import ModelTokenizer

TEMPLATES = Path(__file__).parent / "chat_templates"
END = {"qwen3": "<|im_end|>", "chatml": "<|im_end|>", "llama3_1": "<|eot_id|>"}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>"]
SPECIAL += ["<|end_header_id|>", "<|eot_id|>"]
CORPUS = [
    "user\nassistant\n\nsystem tool_response ANSWER the number is smaller, larger. Try again!\n",
    "abc 123",
]


@functools.cache
def tokenizer_of(template: str) -> ModelTokenizer:
    """A tiny byte-level BPE with the special tokens of the real ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS * 4, trainer)
    whole = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>"
    )
    whole.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return ModelTokenizer(whole, template)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def written(tokenizer: ModelTokenizer, text: str, end: str) -> list[int]:
    """What a policy wrote; with its end-of-turn token unless it was cut."""
    return tokenizer.encode(text + end)


def played(
    tokenizer: ModelTokenizer,
    opening: Sequence[dict[str, str]],
    turns: Sequence[tuple[list[int], Observation]],
) -> list[list[int]]:
    """The tokens before each turn and after the last one's observation."""
    conversation = Conversation(tokenizer)
    tokens = conversation.opening(Observation(messages=tuple(opening)))
    seen = [list(tokens)]
    for answer, observation in turns:
        tokens += [*answer, *conversation.after(answer, observation)]
        seen.append(list(tokens))
    return seen


texts = st.text("abc123 .,!\n<>", max_size=12)
answers = st.text("abc123 .,!<>", min_size=1, max_size=12).map(lambda text: f"A{text.strip()}Z")


@pytest.mark.parametrize("template", sorted(END))
@settings(max_examples=60, deadline=None)
@given(
    system=st.none() | texts,
    first=texts,
    turns=st.lists(
        st.tuples(answers, texts, st.booleans(), st.sampled_from(["user", "tool"])), min_size=1, max_size=5
    ),
)
def test_turn_by_turn_the_tokens_are_those_of_the_whole_conversation(template, system, first, turns) -> None:
    tokenizer = tokenizer_of(template)
    opening = [message("system", system)] * (system is not None) + [message("user", first)]
    said = [
        (written(tokenizer, answer, "" if cut else END[template]), answer, new, role)
        for answer, new, cut, role in turns
    ]
    steps = [(answer, Observation(messages=(message(role, new),))) for answer, _, new, role in said]
    conversation = list(opening)
    whole = [tokenizer.apply_chat_template(conversation)]
    for _, answer, new, role in said:
        conversation += [message("assistant", answer), message(role, new)]
        whole.append(tokenizer.apply_chat_template(conversation))
    assert played(tokenizer, opening, steps) == whole


@pytest.mark.parametrize("template", sorted(END))
def test_the_end_of_the_turn_is_the_policys_where_it_wrote_it_and_the_environments_where_it_was_cut(
    template,
) -> None:
    tokenizer = tokenizer_of(template)
    (end,) = tokenizer.encode(END[template])
    new = Observation(messages=(message("user", "again"),))
    for text, last in (("seven", END[template]), ("seve", "")):
        conversation = Conversation(tokenizer)
        conversation.opening(Observation(messages=(message("user", "guess"),)))
        given_tokens = conversation.after(written(tokenizer, text, last), new)
        assert (given_tokens[0] == end) is (last == "")
        assert (given_tokens.count(end) == 2) is (last == ""), "its end, and the end of the user's message"


def test_two_messages_at_once_and_an_answer_that_looks_like_the_placeholder_are_fine() -> None:
    tokenizer = tokenizer_of("qwen3")
    answer = written(tokenizer, PLACEHOLDER, "<|im_end|>")
    news = [message("tool", f"{PLACEHOLDER}-"), message("tool", PLACEHOLDER)]
    seen = played(
        tokenizer, [message("user", PLACEHOLDER)], [(answer, Observation(messages=tuple(news)))] * 2
    )
    turn = [message("assistant", PLACEHOLDER), *news]
    assert seen[-1] == tokenizer.apply_chat_template([message("user", PLACEHOLDER), *turn, *turn])


def test_reasoning_text_stays_in_the_trajectory_though_the_template_drops_it_from_earlier_turns() -> None:
    tokenizer = tokenizer_of("qwen3")
    answer = written(tokenizer, "<think>\nmiddle\n</think>\n\nseven", "<|im_end|>")
    (before, after) = played(
        tokenizer, [message("user", "guess")], [(answer, Observation(messages=(message("user", "larger"),)))]
    )
    assert after[: len(before) + len(answer)] == before + answer
    plain = tokenizer.apply_chat_template(
        [message("user", "guess"), message("assistant", "seven"), message("user", "larger")]
    )
    assert (
        after[len(before) + len(answer) :] == plain[len(before) + len(tokenizer.encode("seven<|im_end|>")) :]
    )


def test_an_answer_that_ended_with_another_end_token_keeps_it_before_the_templates_own() -> None:
    tokenizer = tokenizer_of("chatml")
    conversation = Conversation(tokenizer)
    conversation.opening(Observation(messages=(message("user", "guess"),)))
    new = conversation.after(
        written(tokenizer, "seven", "<|endoftext|>"), Observation(messages=(message("user", "x"),))
    )
    assert new[0] == tokenizer.encode("<|im_end|>")[0]


def test_text_and_token_ids_follow_as_they_are() -> None:
    tokenizer = tokenizer_of("chatml")
    conversation = Conversation(tokenizer)
    conversation.opening(Observation(text="guess: "))
    assert conversation.after([5], Observation(text="<")) == tokenizer.encode("<")
    assert conversation.after([5], Observation(token_ids=(7, 8))) == [7, 8]
    chat = Observation(messages=(message("user", "hello"),))
    assert conversation.after([5], chat) == tokenizer.apply_chat_template(chat.messages or ()), (
        "the chat begins here"
    )


def test_a_template_that_leaves_answers_out_is_an_error_that_says_so() -> None:
    class Forgetful:
        def encode(self, text: str) -> list[int]:
            return [len(text)]

        def decode(self, token_ids: Sequence[int]) -> str:
            return ""

        def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
            return str(messages[-1]["content"])

        def apply_chat_template(self, messages: Sequence[dict[str, str]]) -> list[int]:
            return self.encode(self.render_chat(messages))

    conversation = Conversation(Forgetful())
    conversation.opening(Observation(messages=(message("user", "a"),)))
    with pytest.raises(RollRayError, match="leaves out what the assistant said"):
        conversation.after([1], Observation(messages=(message("user", "b"),)))
