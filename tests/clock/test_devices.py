"""The table of devices: worlds that ship, the user's own, and everything that is wrong with it at
once.
"""

import pytest

from equipoise.clock.config import ClockConfig, format_duration, parse_duration
from equipoise.clock.devices import DEVICE_POPULATIONS, HOURS_PER_DAY, Device, load_device_classes
from equipoise.utils.errors import UsageError

OWN = """name,share,speed,up,present,dropout
 tractor , 3,120,2,0.5,0.1
barn,1,4000,,,
"""


def test_a_file_of_classes(tmp_path):
    file = tmp_path / "farm.csv"
    file.write_text("\ufeff" + OWN + "\n,,,,,\n")
    tractor, barn = load_device_classes(str(file))
    assert tractor == Device(
        "tractor", 3.0, 120.0, up=2.0, present=(0.5,) * HOURS_PER_DAY, dropout=0.1
    )
    assert barn == Device("barn", 1.0, 4000.0)


def test_semicolons_as_some_spreadsheets_write_them(tmp_path):
    file = tmp_path / "farm.csv"
    file.write_text(OWN.replace(",", ";"))
    assert [device.name for device in load_device_classes(str(file))] == ["tractor", "barn"]


def test_presence_by_hour(tmp_path):
    file = tmp_path / "night.csv"
    hours = " ".join(["1"] * 6 + ["0"] * 18)
    file.write_text(f"name,share,speed,present\nphone,1,10,{hours}\n")
    assert load_device_classes(str(file))[0].present == (1.0,) * 6 + (0.0,) * 18


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(
        "name,share,speed,present,dropout\nold,1,fast,1,0\nnew,0,10,2,1\nodd,1,10\nnone,1,5,0,0\n,1,5,1,0\n"
    )
    with pytest.raises(UsageError) as error:
        load_device_classes(str(file))
    for part in (
        "row 2: speed is 'fast': must be a number above 0",
        "row 3: share is '0'",
        "row 3: dropout is '1': must be a number of at least 0 and below 1",
        "row 3: present is '2'",
        "row 4 has 3 cells, the first row names 5 columns",
        "row 5: present is '0'",
        "row 6: name is empty",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name,share,sped\na,1,1\n", "unknown column 'sped' (did you mean 'speed'"),
        (
            "name,share,speed,hours\na,1,-3,22\n",
            "unknown column 'hours'; row 2: speed is '-3': must be ",
        ),
        ("name,speed\na,1\n", "column 'share' is missing"),
        ("name,share,speed,speed\na,1,1,1\n", "column 'speed' stands there twice"),
        ("name,share,speed\n", "it has no line of a device"),
        ("", "column 'name' is missing"),
        ("name,share,speed\na,1,1\na,1,2\n", "two classes are called 'a'"),
        ("name,share,speed\na,1,nan\n", "speed is 'nan'"),
    ],
)
def test_a_bad_table(text, part, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match="devices file") as error:
        load_device_classes(str(file))
    assert part in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"did you mean 'phones'"):
        load_device_classes("phone")
    with pytest.raises(UsageError, match="No such file"):
        load_device_classes(str(tmp_path / "none.csv"))
    (tmp_path / "latin.csv").write_bytes("name\nMünchen\n".encode("latin-1"))
    with pytest.raises(UsageError, match="is not UTF-8"):
        load_device_classes(str(tmp_path / "latin.csv"))


def test_equal_devices_are_the_default():
    """A clock that nobody asked for must change no result: everybody is there, replies, and takes
    its turn.
    """
    (only,) = DEVICE_POPULATIONS["default"]
    assert (only.spread, only.jitter, only.dropout, set(only.present)) == (0, 0, 0, {1.0})
    assert ClockConfig().device_classes == DEVICE_POPULATIONS["default"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1 d", 86400), ("", float("inf"))],
)
def test_times_as_people_write_them(text, meant):
    assert parse_duration("until", text) == meant


def test_times_for_people():
    assert [format_duration(x) for x in (0.5, 59, 90, 7200, 200000)] == [
        "0.5 s",
        "59 s",
        "1.5 m",
        "2 h",
        "2.31 d",
    ]


@pytest.mark.parametrize("text", ["2 hours", "-1s", "0", "0h", "h", "1e3"])
def test_times_that_are_none(text):
    with pytest.raises(UsageError, match=r"until is .*: must be a time above 0 such as 30s"):
        ClockConfig(until=text)


def test_options_that_contradict_each_other_are_told_at_once():
    with pytest.raises(UsageError) as error:
        ClockConfig(mode="async", deadline="30s", overselection=2.0, until="soon", devices="phone")
    for part in (
        "leave deadline empty",
        "overselection is for mode sync",
        "until is 'soon'",
        "devices is 'phone'",
    ):
        assert part in str(error.value)
    with pytest.raises(
        UsageError, match="mode semi ends its rounds by the clock: set deadline; buffer is for mode"
    ):
        ClockConfig(mode="semi", buffer=3)
