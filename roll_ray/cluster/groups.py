"""Placement groups: the bundles of a `Placement`, reserved in a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from fractions import Fraction

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from roll_ray.cluster.session import Session
from roll_ray.errors import RollRayError
from roll_ray.placement import Placement, Seat

WAIT_S = 60.0


class Group:
    """A reserved placement group and the way to the seats on it."""

    def __init__(self, group: PlacementGroup, resource: str) -> None:
        self.group, self.resource = group, resource

    def strategy(self, seat: Seat) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=seat.bundle, placement_group_capture_child_tasks=False
        )

    def node_of(self, seat: Seat) -> str:
        """The id of the node that the seat's bundle lies on."""
        return str(placement_group_table(self.group)["bundles_to_node_id"][seat.bundle])

    def resources(self, seat: Seat) -> Mapping[str, float]:
        """The seat's declared share: 1/k of each of its devices (never rounded up over the bundle)."""
        share = Fraction(len(seat.devices)) * seat.share
        return {self.resource: int(float(share) * 1000) / 1000}


async def _reserved(group: PlacementGroup) -> bool:
    """Whether the group is there within `WAIT_S`. Asked a second at a time: a thread that waits cannot be cancelled."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if await asyncio.to_thread(group.wait, 1):
            return True
    return False


@contextlib.asynccontextmanager
async def reserved(placement: Placement, session: Session, name: str) -> AsyncIterator[Group]:
    """Reserve the bundles; raises RollRayError when the cluster cannot hold them within a minute."""
    bundles = [{session.resource: float(devices)} for devices in placement.bundles]
    group = placement_group(bundles, strategy="PACK", name=name)
    try:
        if not await _reserved(group):
            raise RollRayError(
                f"the cluster could not reserve {sum(placement.bundles)} {session.resource} within {WAIT_S:.0f} s",
                why=f"it has {ray.cluster_resources().get(session.resource, 0):g} in all, "
                f"{ray.available_resources().get(session.resource, 0):g} free now; bundles asked for: {bundles}",
                next_step="free devices (`ray status`), name fewer in devices.rollout and devices.train, or add nodes",
            )
        yield Group(group, session.resource)
    finally:
        remove_placement_group(group)
