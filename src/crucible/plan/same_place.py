"""New values of a module's buffers that a kernel may write where the old ones lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from crucible.plan.program import Buffer
from crucible.plan.schedule import Plan
from crucible.plan.stages import Map, Row, read, values_of, written
from crucible.plan.value import Load, walk


def same_place(plan: Plan, updates: Iterable[tuple[Buffer, Buffer]], returned: Collection[str]) -> dict[str, str]:
    """Of (old, new) buffers those that may be one: names of the old by names of the new.

    Not of what is returned too, or of two that get one new value.
    """
    pairs = [(old.name, new.name) for old, new in updates]
    uses = Counter([*(new for _, new in pairs), *returned, *plan.saved])
    return {new: old for old, new in pairs if uses[new] == 1 and _may(plan, old, new)}


def _may(plan: Plan, old: str, new: str) -> bool:
    """Whether whoever writes an element is the last that reads it, and the only one in its kernel."""
    makers = [n for n, s in enumerate(plan.stages) if any(b.name == new for b in written(s))]
    if len(makers) != 1 or any(old in read(s) for s in plan.stages[makers[0] + 1 :]):
        return False
    if any(new in read(s) for s in plan.stages):
        return False
    stage = plan.stages[makers[0]]
    if isinstance(stage, Row):
        stores = [s for _, s in stage.finals if s.buffer.name == new]
    elif isinstance(stage, Map) and not stage.several:
        stores = [s for s in stage.stores if s.buffer.name == new]
    else:
        return False
    if len(stores) != 1:
        return False
    (store,) = stores
    loads = [v for value in values_of(stage) if value is not store.value for v in walk(value)]
    if any(isinstance(v, Load) and v.buffer == old for v in loads):
        return False
    own = [v for v in walk(store.value) if isinstance(v, Load) and v.buffer == old]
    return all(v.index == store.index and not v.dynamic for v in own)
