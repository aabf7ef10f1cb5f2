"""Everybody's device: times and energy by hand, draws that depend on nobody else, and the queue of
events.
"""

import math

import numpy as np
import pytest

from equipoise.clock.devices import (
    DEVICE_POPULATIONS,
    HOURS_PER_DAY,
    SECONDS_PER_HOUR,
    Device,
    DevicePopulation,
)
from equipoise.simulation.clock import end_of_round

IDS = np.arange(50_000)


def whole(value, ids=IDS):
    return np.full(len(ids), float(value))


def test_a_trip_by_hand():
    """300 samples at 100 per second, 1 MB down at 8 Mbit/s, 0.5 MB up at 2 Mbit/s: 3 + 1 + 2
    seconds.
    """
    fleet = DevicePopulation(
        (Device("one", 1.0, 100.0, up=2.0, down=8.0, watts=4.0, radio=0.5),), 0
    )
    trips = fleet.round_durations(
        np.array([7]), 1, np.array([300.0]), np.array([5e5]), np.array([1e6])
    )
    assert trips.seconds[0] == pytest.approx(6.0, rel=1e-12)
    assert trips.joules[0] == pytest.approx(3 * 4.0 + 3 * 0.5, rel=1e-12)
    assert not trips.lost.any()


def test_shares_speeds_and_losses_are_those_of_the_table():
    world = (Device("a", 1.0, 100.0, spread=0.3), Device("b", 3.0, 10.0, dropout=0.2))
    fleet = DevicePopulation(world, 5)
    kinds = fleet.class_index(IDS)
    assert kinds.mean() == pytest.approx(0.75, abs=0.01)
    logs = np.log(fleet.profiles(IDS).samples_per_second / 100.0)[kinds == 0]
    assert (logs.mean(), logs.std()) == (pytest.approx(0, abs=0.01), pytest.approx(0.3, abs=0.01))
    assert (fleet.profiles(IDS).samples_per_second[kinds == 1] == 10.0).all()
    trips = fleet.round_durations(IDS, 1, whole(100), whole(0), whole(0))
    assert not trips.lost[kinds == 0].any()
    assert trips.lost[kinds == 1].mean() == pytest.approx(0.2, abs=0.01)
    cut = trips.seconds[trips.lost]  # somewhere on the way: of ten seconds, five on average
    assert (cut.mean(), bool((cut < 10).all())) == (pytest.approx(5, abs=0.2), True)


def test_a_client_is_the_same_whoever_is_asked_with_it():
    fleet, some = DevicePopulation(DEVICE_POPULATIONS["phones"], 3), np.array([4, 999, 31_000])
    everybody = fleet.round_durations(IDS, 2, whole(64), whole(1e4), whole(1e4))
    few = DevicePopulation(DEVICE_POPULATIONS["phones"], 3).round_durations(
        some, 2, whole(64, some), whole(1e4, some), whole(1e4, some)
    )
    assert (everybody.seconds[some] == few.seconds).all()
    assert (everybody.lost[some] == few.lost).all()
    other = DevicePopulation(DEVICE_POPULATIONS["phones"], 4).round_durations(
        some, 2, whole(64, some), whole(1e4, some), whole(1e4, some)
    )
    assert (other.seconds != few.seconds).all()


def test_presence_follows_the_hour():
    by_hour = tuple(hour / HOURS_PER_DAY for hour in range(HOURS_PER_DAY))
    fleet = DevicePopulation((Device("a", 1.0, 1.0, present=by_hour),), 0)
    shares = [
        fleet.available(IDS, (24 * 3 + hour) * SECONDS_PER_HOUR + 5.0).mean()
        for hour in range(HOURS_PER_DAY)
    ]
    assert shares == pytest.approx(by_hour, abs=0.01)
    same_hour = (
        fleet.available(IDS, 12 * SECONDS_PER_HOUR),
        fleet.available(IDS, 13 * SECONDS_PER_HOUR - 1),
    )
    assert (same_hour[0] == same_hour[1]).all()
    assert not (same_hour[0] == fleet.available(IDS, 36 * SECONDS_PER_HOUR)).all()


NAMES, AT = np.array([3, 5, 8, 9]), np.array([4.0, 2.0, 2.0, 7.0])
NOBODY = np.zeros(4, bool)


@pytest.mark.parametrize(
    ("wanted", "within", "lost", "end", "come"),
    [
        (1, math.inf, [], 12.0, [5]),  # of two at one time, the lower number
        (2, math.inf, [], 12.0, [5, 8]),
        (4, math.inf, [], 17.0, [3, 5, 8, 9]),
        (4, 5.0, [], 15.0, [3, 5, 8]),  # the deadline
        (4, 1.0, [], 11.0, []),
        (2, math.inf, [5], 14.0, [3, 5, 8]),  # what is lost is an event, and no reply
        (2, math.inf, [3, 5, 8], 17.0, [3, 5, 8, 9]),  # there are not two: the last event of all
        (9, math.inf, [], 17.0, [3, 5, 8, 9]),
    ],
)
def test_when_a_round_ends(wanted, within, lost, end, come):
    found, mask = end_of_round(10.0, NAMES, 10.0 + AT, np.isin(NAMES, lost), wanted, within)
    assert (found, NAMES[mask].tolist()) == (end, come)


def test_time_never_goes_back():
    """Whoever came while nobody waited is taken at once."""
    end, mask = end_of_round(10.0, np.array([1]), np.array([3.0]), np.array([False]), 1)
    assert (end, mask.tolist()) == (10.0, [True])
