"""Engine against trainer, by the numbers: what `roll-ray selfcheck` runs.

Each claim is tried on a real vLLM engine beside the real policy model (`workers.engine_pair`), once with tied
and once with untied embeddings.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

from roll_ray.errors import RollRayError, WeightUpdateError
from roll_ray.weights.manifest import WeightManifest
from workers.engine_pair import Answer, Pair, close_pair, open_pair

Report = Callable[[str, bool, str], None]
TOLERANCE = 1e-5
"""Nats between engine and trainer in float32."""


async def agreement_over_updates(pair: Pair) -> tuple[bool, str]:
    """Before and after an update of every parameter, and the update is seen at all."""
    before = await pair.difference()
    pair.change_every_parameter(seed=pair.version + 1)
    missed = await pair.difference()
    report = await pair.update()
    after = await pair.difference()
    passed = before <= TOLERANCE and after <= TOLERANCE and missed > 100 * TOLERANCE
    return passed, (
        f"{before:.1e} nats before, {missed:.1e} with the update withheld, {after:.1e} after; "
        f"canary {report.canary_difference or 0.0:.1e}"
    )


async def ratio_is_one(pair: Pair) -> tuple[bool, str]:
    """At temperature 0.6, for tokens as they were sampled and for given ones."""
    sampled, scored = await pair.sampled_difference(0.6), await pair.difference(temperature=0.6)
    return max(sampled, scored) <= TOLERANCE, f"sampled {sampled:.1e}, scored {scored:.1e} nats"


async def no_drift(pair: Pair) -> tuple[bool, str]:
    """Five updates that change nothing leave the difference where it was, to the bit."""
    start, differences = await pair.difference(), []
    for _ in range(5):
        await pair.update()
        differences.append(await pair.difference())
    return max(
        differences
    ) <= start, f"{start:.1e} nats at first, at most {max(differences):.1e} over five updates"


async def pause_keeps_everything(pair: Pair) -> tuple[bool, str]:
    """A pause before the first token and one in mid generation, an update within the latter."""
    whole = await pair.generate(pair.requests(8, 48))
    await pair.engine.pause()
    early = pair.requests(8, 48)
    await pair.engine.submit(early)
    await pair.engine.resume()
    after_early = await pair.gather(early)
    late, answers = pair.requests(8, 48), dict[str, Answer]()
    await pair.engine.submit(late)
    await pair.made(3 * len(late))
    await pair.engine.pause()
    old = pair.engine.version
    await pair.collect_into(answers, 1.0)
    prefixes = {i: Answer(list(a.tokens), list(a.logprobs), list(a.versions)) for i, a in answers.items()}
    await pair.update()
    await pair.engine.resume()
    after_late = await pair.gather(late, answers)
    same = all(
        a.tokens == b.tokens and a.logprobs == b.logprobs
        for other in (after_early, after_late)
        for a, b in zip(whole, other, strict=True)
    )
    kept = all(
        answers[i].tokens[: len(p.tokens)] == p.tokens
        and answers[i].logprobs[: len(p.tokens)] == p.logprobs
        and answers[i].versions == [old] * len(p.tokens) + [old + 1] * (48 - len(p.tokens))
        for i, p in prefixes.items()
    )
    lengths = sorted(len(p.tokens) for p in prefixes.values())
    paused_within = len(lengths) == 8 and lengths[0] >= 3 and lengths[-1] < 48
    return same and kept and paused_within, (
        f"paused before the first token and after {lengths[0] if lengths else 0} to "
        f"{lengths[-1] if lengths else 0} of 48; continuations equal: {same}, versions exact: {kept}"
    )


async def faults_are_caught(pair: Pair) -> tuple[bool, str]:
    """A weight left behind in each way we know of is refused, and the next good update mends the engine."""
    pair.change_every_parameter(seed=1000)
    stale = [(name, t.clone()) for name, t in pair.named_tensors()]
    pair.change_every_parameter(seed=1001)
    fresh = pair.named_tensors()
    embedding = next(i for i, (name, _) in enumerate(fresh) if "embed_tokens" in name)

    async def stale_head() -> None:
        await pair.engine.set_repacking(False)
        try:
            await pair.engine.update_weights(pair.publish())
        finally:
            await pair.engine.set_repacking(True)

    async def old_embedding() -> None:
        mixed = [*fresh[:embedding], stale[embedding], *fresh[embedding + 1 :]]
        await pair.engine.update_weights(pair.publish(mixed))

    async def dropped() -> None:
        await pair.engine.update_weights(pair.publish(fresh[:7] + fresh[8:]))

    async def flipped() -> None:
        manifest = pair.publish()
        _flip_a_byte(manifest)
        await pair.engine.update_weights(manifest)

    faults: dict[str, Callable[[], Awaitable[None]]] = {
        "one tensor of the version before": old_embedding,
        "one tensor dropped": dropped,
        "one byte changed": flipped,
    }
    if pair.tied:  # an output head of its own is packed by vLLM's reload
        faults["embedding not re-packed"] = stale_head
    missed = [name for name, fault in faults.items() if not await _refused(fault)]
    await pair.update()
    mended = await pair.difference()
    return not missed and mended <= TOLERANCE, (
        f"{len(faults) - len(missed)} of {len(faults)} refused"
        + (f" (missed: {', '.join(missed)})" if missed else "")
        + f"; {mended:.1e} nats after the next update"
    )


async def _refused(fault: Callable[[], Awaitable[None]]) -> bool:
    try:
        await fault()
    except WeightUpdateError:
        return True
    return False


def _flip_a_byte(manifest: WeightManifest) -> None:
    entry = manifest.tensors[len(manifest.tensors) // 2]
    path = manifest.bucket_path(entry.bucket)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(entry.offset + 3)
        byte = file.read(1)[0]
        file.seek(entry.offset + 3)
        file.write(bytes([byte ^ 0x40]))


CLAIMS: dict[str, Callable[[Pair], Awaitable[tuple[bool, str]]]] = {
    "engine and trainer agree before and after an update of every parameter": agreement_over_updates,
    "ratio 1 at temperature 0.6": ratio_is_one,
    "no drift over five updates at learning rate 0": no_drift,
    "pause and resume in mid generation lose nothing": pause_keeps_everything,
    "a weight left behind is caught": faults_are_caught,
}


def run_selfcheck(report: Report) -> bool:
    """Check every claim for tied and untied embeddings; `report(claim, passed, detail)` per claim. Whether all hold."""

    async def check(folder: str, tied: bool) -> bool:
        kind = "tied" if tied else "untied"
        try:
            pair = await open_pair(folder, tied=tied)
        except RollRayError as error:
            report(f"the engine starts [{kind}]", False, str(error))
            return False
        results = []
        try:
            for claim, test in CLAIMS.items():
                try:
                    passed, detail = await test(pair)
                except Exception as error:  # one claim that cannot be checked does not hide the others
                    passed, detail = False, f"{type(error).__name__}: {error}"
                report(f"{claim} [{kind}]", passed, detail)
                results.append(passed)
        finally:
            await close_pair(pair)
        return all(results)

    with tempfile.TemporaryDirectory() as folder:
        results = [asyncio.run(check(folder, tied)) for tied in (True, False)]
    return all(results)
