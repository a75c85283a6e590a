"""The protocol of two hosts and one bucket, as a model to search: ``model_of`` puts the parts together."""

from __future__ import annotations

from collections.abc import Iterator

from .protocol_bucket import Bucket
from .protocol_commits import a_day_passes, collection_steps, commit_steps, look_at_chain
from .protocol_explorer import Model
from .protocol_ownership import lose, ownership_steps
from .protocol_uploads import upload_steps, user_steps
from .protocol_world import NAMES, Host, Row, Scenario, Step, World, is_stale, late_arrivals, wrong


def model_of(scenario: Scenario) -> Model[World]:
    """Give the model of a scenario."""
    rows = tuple(Row() for _ in range(scenario.paths))
    first = World(
        Bucket(live=(None,) * scenario.paths),
        (Host(rows=rows), Host(rows=rows)),
        frozenset(),
        scenario.budget,
    )

    def steps(world: World) -> Iterator[Step]:
        yield from late_arrivals(world)
        yield from a_day_passes(world)
        for number in range(2):
            yield from ownership_steps(world, number, scenario)
            if is_stale(world, number):
                yield f"{NAMES[number]} notices that it lost", lose(world, number)
                yield from look_at_chain(world, number, scenario)
                if not world.left.stale:
                    continue
            yield from user_steps(world, number, scenario)
            yield from upload_steps(world, number, scenario)
            yield from commit_steps(world, number, scenario)
            yield from collection_steps(world, number, scenario)

    return Model(first, steps, wrong)
