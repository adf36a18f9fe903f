"""A batch with every kind of sample, and trainers of one process that settings describe: what tests of the trainer's
wiring share."""

import asyncio
import contextlib
from unittest import mock

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from recipes.rules import default_rules
from recipes.staff import trainer_spec_of
from roll_ray.actors import LocalActor, Pool
from roll_ray.batch import Batch
from roll_ray.parts import MiniBatch, Part, Share, share_out, split_by_visit
from roll_ray.receipts import Cut, Receipt
from roll_ray.sample import Reward, Role, Sample, SamplingDistribution
from roll_ray.scoring import Scorer
from roll_ray.settings import RunSettings
from roll_ray.settings_io import read_settings
from roll_ray.tracking.metrics import check_declared
from roll_ray.trainers import TrainerGroup
from schedulers.protocol import SampleId, Visit
from workers.backends.process_group import free_address, join_alone, leave
from workers.trainer import PolicyTrainer

VOCAB, PROMPTS, SIBLINGS = 24, 4, 3


class Settings(RunSettings):
    model: str = "m"
    learning_rate: float = 1e-2


@contextlib.contextmanager
def starter(folder):
    """Starts trainers of a tiny model that is made in `folder`, in a group of one that ends with the block."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    where = {"max_position_embeddings": 64, "tie_word_embeddings": True, "initializer_range": 0.2}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCAB, **sizes, **heads, **where)).save_pretrained(folder)

    def start(*words, cls=Settings):
        settings = settings_of(f"model={folder}", *words, cls=cls)
        trainer = PolicyTrainer(trainer_spec_of(settings, default_rules(settings), "cpu"))
        trainer.start(*free_address())
        return trainer

    torch.set_num_threads(1)
    join_alone()
    with mock.patch("workers.backends.process_group.join"):
        yield start
    leave()


def settings_of(*words, cls=Settings):
    settings = read_settings(cls, words)
    assert settings.problems() == []
    return settings


def sample(i):
    random = np.random.default_rng(i)
    roles = np.full(int(random.integers(4, 12)), Role.POLICY)
    roles[:2] = Role.PROMPT
    roles[3 : 3 + i % 3] = Role.ENVIRONMENT
    if i == 7:
        roles[2:] = Role.ENVIRONMENT  # an answer of no tokens
    n = len(roles)
    return Sample(
        id=SampleId(Visit(f"p{i // SIBLINGS}", 0), i % SIBLINGS),
        attempt=0,
        tokens_T=random.integers(0, VOCAB, n).astype(np.int32),
        roles_T=roles.astype(np.int8),
        logprobs_T=np.where(roles == Role.POLICY, random.normal(-3, 0.1, n), 0).astype(np.float32),
        versions_T=np.zeros(n, np.int32),
        reward=Reward.invalid("no verdict") if i == 4 else Reward(float(random.integers(0, 3))),
        finish_reason="length" if i == 2 else "stop",
        sampling=SamplingDistribution(),
    )


SAMPLES = {s.id: s for s in map(sample, range(PROMPTS * SIBLINGS))}


def receipt(s, turns=()):
    n, verdict = len(s.tokens_T), (s.truncated, s.reward.value, "", "d")
    return Receipt(s.id, 0, "s", n, s.n_policy_tokens, *verdict, 0, 0, 0.0, 0.0, turns=turns)


def part_of(samples, mini_batches=1, ranks=1, turns=lambda s: ()):
    receipts = tuple(sorted((receipt(s, turns(s)) for s in samples), key=lambda r: r.sample))
    by_id = {s.id: s for s in samples}

    def share(rank):
        handles = (Batch.of([by_id[r.sample] for r in rank]),) if rank else ()
        return Share(tuple(rank), handles)

    cuts = split_by_visit(receipts, mini_batches)
    rows = (MiniBatch(tuple(map(share, share_out(cut, ranks)))) for cut in cuts)
    return Part(Cut(1, receipts), tuple(rows))


def scorer_of(settings, *trainers):
    rules = default_rules(settings)
    pool = Pool("actor-train", [LocalActor(t, f"actor-train-{i}") for i, t in enumerate(trainers)])
    tokenwise = rules.finish if rules.token_stage is not None else None
    return Scorer(rules.estimator, rules.weigh, pool, keeps_proximal=True, tokenwise=tokenwise)


def step_on(trainer, settings, samples=None, steps=1):
    """Optimizer steps on some samples; the metrics of each."""
    group, scorer = TrainerGroup(Pool("t", [LocalActor(trainer, "t")])), scorer_of(settings, trainer)
    taken = []

    async def train():
        part = part_of(samples or SAMPLES.values(), settings.optimizer_steps_per_batch)
        for mini_batch in await scorer(part):
            await group.accumulate(mini_batch)
            await group.step(mini_batch.denominator)

    for _ in range(steps):
        asyncio.run(train())
        taken.append(group.take_metrics())
        check_declared([*taken[-1], *scorer.metrics])
    return taken
