"""Trees on disk: nested, empty branches and all types survive; damage is noticed and named."""

import pytest
import torch

from equipoise.cli import main
from equipoise.utils import serialization as checkpoint
from equipoise.utils.errors import UsageError
from helpers_disk import Faulty, on
from helpers_records import unfinish, write_run


def test_round_trip_of_a_nested_tree(tmp_path):
    base = torch.arange(6.0)
    tree = {
        "empty": {},
        "a": {"b/c": base.view(2, 3), "shared": base, "part": base[2:4], "t": base.view(2, 3).T},
        "flags": torch.tensor([True, False]),
        "n": torch.tensor(7),
        "none": torch.empty(0, 3),
        "d": torch.tensor([1e-300], dtype=torch.float64),
    }
    checkpoint.save(tmp_path / "x", tree, {"round": 3})
    back, meta = checkpoint.load(tmp_path / "x")
    assert meta == {"round": 3}
    assert back["empty"] == {}
    assert back["a"].keys() == tree["a"].keys()
    for name in tree["a"]:
        assert torch.equal(back["a"][name], tree["a"][name])
    assert back["flags"].tolist() == [True, False]
    assert int(back["n"]) == 7
    assert back["none"].shape == (0, 3)
    assert float(back["d"]) == 1e-300


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, {"w": torch.ones(100)}, {})
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-50]
    elif damage == "flip":
        content[-10] ^= 1
    elif damage == "empty":
        content = bytearray()
    else:
        content = bytearray(b"hello")
    path.write_bytes(bytes(content))
    with pytest.raises(UsageError, match=r"last\.safetensors.* is damaged"):
        checkpoint.load(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    checkpoint.save(path, {"w": torch.ones(3)}, {"round": 1})

    for n in (1, 2, 3):  # writing, syncing, renaming
        with on(Faulty(n)), pytest.raises(OSError, match="No space"):
            checkpoint.save(path, {"w": torch.zeros(3)}, {"round": 2})
        assert checkpoint.load(path)[1] == {"round": 1}
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["checkpoint/last.safetensors", "config.json"])
def test_resume_with_a_corrupt_file_says_so_and_overwrites_nothing(tmp_path, capsys, what):
    out = tmp_path / "run"
    small = ["--clients", "4", "--samples", "40", "--rounds", "3", "--epochs", "1", "--quiet"]
    assert main(["run", "--out", str(out), *small]) == 0
    unfinish(out)
    (out / what).write_bytes(b"\x00garbage")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert main(["resume", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("equipoise: ")
    assert error.count("\n") == 1
    assert what.split("/")[-1] in error
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_resume_of_a_config_with_unknown_options_says_which(tmp_path, capsys):
    write_run(tmp_path, {"method": "fedavg", "rouns": 3})
    assert main(["resume", str(tmp_path)]) == 2
    assert "unknown option 'rouns'" in capsys.readouterr().err
