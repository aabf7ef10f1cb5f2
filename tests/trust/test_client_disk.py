"""A client on Flower whose disk fails, tears or dies at any operation: the round does not count,
the next one does.
"""

import pytest

from equipoise.methods import all_methods
from flower.test_remote import ROUNDS, Here, federate, server_side
from helpers import largest_difference, simulate, small_task
from helpers_disk import Died, Faulty, Forgetful, on

FEW = {"clients": 3, "samples": 16}
"""The disk has as many operations whatever the rows are."""


class Failing(Here):
    """Client 1's disk goes wrong in the second round; when the process died, no reply comes."""

    def __init__(self, method, task, folder, disk):
        super().__init__(method, task, folder)
        self.disk = disk

    def exchange(self, messages, limit):
        if len(self.sent) != 1:
            return super().exchange(messages, limit)
        others = super().exchange(
            {client: data for client, data in messages.items() if client != 1}, limit
        )
        try:
            with on(self.disk):
                return {**others, 1: self.nodes[1].answer(messages[1])}
        except Died:
            if isinstance(self.disk, Forgetful):
                self.disk.cut()
            return others


def run(disk_of, tmp_path, n):
    """A run in which client 1's disk fails at its n-th operation of round 2; its logs, and the
    disk.
    """
    method, task = all_methods()["scaffold"](), small_task("linear", **FEW)
    folder = tmp_path / str(n)
    folder.mkdir()
    wire = Failing(method, task, folder, None)
    simulation = federate(method, task, wire)
    logs = [simulation.run_round()]
    wire.disk = disk_of(folder / "1")
    logs += [simulation.run_round() for _ in range(ROUNDS - 1)]
    return simulation, logs, wire.disk


@pytest.mark.parametrize("how", ["full", "torn", "dies", "cut"])
def test_a_round_that_could_not_be_saved_does_not_count(how, tmp_path):
    def disk(n):
        return lambda folder: Forgetful(folder, n) if how == "cut" else Faulty(n, how)

    whole, _, counted = run(disk(0), tmp_path, 0)
    loop = simulate(all_methods()["scaffold"](), small_task("linear", **FEW), ROUNDS, "loop")
    assert largest_difference(server_side(loop), server_side(whole)) == 0
    assert counted.count > 6
    results = []
    for n in range(1, counted.count + 1):
        simulation, logs, _ = run(disk(n), tmp_path, n)
        told = [log.absent for log in logs]
        assert list(told[1]) == [1], n
        assert not told[2], n  # in the next round it is there again, from its first round on
        results.append(server_side(simulation))
    for result in results[1:]:
        assert largest_difference(results[0], result) == 0
