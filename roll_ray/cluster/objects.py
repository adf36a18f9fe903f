"""The Ray object store as a place to put things for others."""

from __future__ import annotations

from typing import Any

import ray


class RayObjectStore:
    """`put` answers with a handle; handles travel inside a list, so that only who needs a value fetches it."""

    def put(self, value: Any) -> Any:
        return ray.put(value)


async def resolve(handle: Any) -> Any:
    """The value behind a handle that came inside a container."""
    return await handle if isinstance(handle, ray.ObjectRef) else handle
