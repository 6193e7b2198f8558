"""Two versions of a model among workers that die, drain and come back as the other version, with splits at random."""

import pytest

from slipstream.router.dispatch.table.actions import Action, Send
from slipstream.router.protocol.messages import Adopt, Generate, Prefill, Reserve
from tests.support.router.faulty_world import FAULTS_END_S, World

SPLITS = [None, {"1": 90, "2": 10}, {"1": 0, "2": 1}, {"1": 1, "2": 0}, {"1": 1, "2": 1}]


class VersionedWorld(World):
    """What a worker is sent of a request belongs to its own version, whatever happened to others before."""

    def __init__(self, seed: int, num_requests: int) -> None:
        super().__init__(seed, num_requests)
        for _ in range(8):
            self.after(self.rng.uniform(0, FAULTS_END_S), self.change_split)

    def version_of(self, name: str) -> str:
        return self.rng.choice("12")

    def change_split(self) -> None:
        self.perform(self.dispatcher.set_split(self.rng.choice(SPLITS), self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Generate | Reserve | Prefill | Adopt):
                self.check_version(action.worker.name, action.message.request.request_id)
                if isinstance(action.message, Reserve):
                    self.check_version(action.message.source.name, action.message.request.request_id)
        super().perform(actions)

    def check_version(self, worker: str, request_id: str) -> None:
        record = self.dispatcher.history.get(request_id)
        assert record is not None
        assert record.version == self.workers[worker].hello.model_version


@pytest.mark.parametrize("block", range(4))
def test_nothing_crosses_versions_and_every_request_ends_once(block: int) -> None:
    num_moved = num_waited = 0
    for seed in range(block * 30, block * 30 + 30):
        world = VersionedWorld(seed, 30)
        try:
            world.run()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {world.now:.3f} s: {error}") from error
        counts = [version.counts for version in world.dispatcher.snapshot(world.now).versions]
        num_moved += sum(one.num_moved_in for one in counts)
        records = [world.dispatcher.history.get(request_id) for request_id in world.requests]
        num_waited += sum("does not serve it" in line for one in records if one for line in one.lines())
    assert num_moved > 30
    assert num_waited > 10
