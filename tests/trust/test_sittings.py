"""Long checks go on where the last sitting ended."""

import json
from dataclasses import dataclass

import pytest

from trust.sittings import Found, sit


@dataclass
class Counted(Found):
    things: int = 0
    wrong: int = 0
    sittings: int = 0

    def in_words(self) -> str:
        return f"{self.things} things, {self.wrong} wrong"

    @property
    def failed(self) -> bool:
        return self.wrong > 0


def test_what_sittings_find_is_added_up(tmp_path, monkeypatch, capsys):
    asked = []

    def check(left, minutes, seed):
        asked.append((left, minutes, seed))
        return Counted(things=min(left, 40), wrong=seed, sittings=1)

    commits = iter(("0123", "4567"))
    monkeypatch.setattr("trust.sittings.provenance", lambda: {"commit": next(commits)})
    monkeypatch.setattr(
        "sys.argv",
        ["check", "--things", "100", "--minutes", "2", "--add", str(tmp_path / "found.json")],
    )
    for code in (0, 1):
        with pytest.raises(SystemExit) as ended:
            sit(Counted, check, wanted=7, minutes=1.0, about="A check.")
        assert ended.value.code == code
    assert asked == [(100, 2.0, 0), (60, 2.0, 1)]
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "things": 80,
        "wrong": 1,
        "sittings": 2,
        "commits": ["0123", "4567"],
    }
    assert capsys.readouterr().out == "40 things, 0 wrong\n80 things, 1 wrong\n"
