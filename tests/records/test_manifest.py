"""Checked files: what the manifest does not know is refused; crashes leave states that it knows."""

import ast
import json
from pathlib import Path

import pytest

from equipoise.records import manifest
from equipoise.records.client_table import csv_text, parse_names, parse_table, table_text
from equipoise.records.manifest import MANIFEST_FILE, CheckedFolder, FileState
from equipoise.records.run_dir import ENTRIES, RoundLog, RunFolder
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from helpers_disk import Died, Faulty, Forgetful, on
from helpers_records import record

# sha256 of "abc", from FIPS 180-2
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_manifest_has_size_and_digest_of_each_file_and_of_itself(tmp_path):
    CheckedFolder(tmp_path).write({"a.txt": "abc"})
    tree = json.loads((tmp_path / MANIFEST_FILE).read_text())
    assert tree["files"] == {"a.txt": [[3, ABC]]}
    assert len(tree["sha256"]) == 64
    tree["files"]["a.txt"] = [[4, ABC]]
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(tree))
    with pytest.raises(UsageError, match=r"manifest.json' is damaged or was edited"):
        CheckedFolder(tmp_path).file("a.txt").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.write_text("abd"), "a.txt' is damaged or was edited"),
        (lambda file: file.write_text("ab"), "a.txt' is damaged or was edited"),
        (lambda file: file.write_text("abcd"), "a.txt' is damaged or was edited"),
        (lambda file: file.unlink(), "a.txt' is missing"),
        (lambda file: (file.parent / MANIFEST_FILE).unlink(), "manifest.json' is missing"),
        (lambda file: (file.parent / MANIFEST_FILE).write_text("{"), "manifest.json' is damaged"),
        (
            lambda file: (file.parent / MANIFEST_FILE).write_text('{"files":' * 10**5),
            "manifest.json' is damaged",
        ),
    ],
)
def test_changes_are_refused_and_named(change, message, tmp_path):
    folder = CheckedFolder(tmp_path)
    folder.write({"a.txt": "abc"})
    assert folder.file("a.txt").read_text() == "abc"
    change(tmp_path / "a.txt")
    with pytest.raises(UsageError, match=message):
        folder.file("a.txt").read_text()


def test_a_file_that_the_manifest_does_not_name_does_not_exist(tmp_path):
    folder = CheckedFolder(tmp_path)
    folder.write({"a.txt": "abc"})
    (tmp_path / "b.txt").write_text("smuggled")
    assert not folder.file("b.txt").exists()
    with pytest.raises(UsageError, match=r"b.txt' is not in 'manifest.json'"):
        folder.file("b.txt").read_text()


def test_a_checked_file_is_no_path(tmp_path):
    folder = CheckedFolder(tmp_path)
    folder.write({"a.txt": "abc"})
    with pytest.raises(TypeError):
        Path(folder.file("a.txt"))  # type: ignore[arg-type]


def test_a_log_may_grow_beyond_its_digest_and_never_shrink(tmp_path):
    folder = CheckedFolder(tmp_path)
    folder.write({"log.jsonl": "abc"})
    io.append(tmp_path / "log.jsonl", "def")
    assert folder.file("log.jsonl").read_text() == "abcdef"
    folder.write({}, {"log.jsonl": FileState(6, manifest._state_of(tmp_path / "log.jsonl").sha256)})
    (tmp_path / "log.jsonl").write_text("abcde")
    with pytest.raises(UsageError, match="is damaged"):
        folder.file("log.jsonl").read_text()


def read_all(folder):
    """Content of both files, or None where one does not exist."""
    files = [folder.file(name) for name in ("a.txt", "b.txt")]
    return tuple(file.read_text() if file.exists() else None for file in files)


@pytest.mark.parametrize("how", ["full", "torn", "dies", "after"])
@pytest.mark.parametrize("first", [{}, {"a.txt": "old a", "b.txt": "old b"}])
def test_a_fault_of_any_operation_leaves_old_or_new_files(how, first, tmp_path):
    old = tuple(first.get(name) for name in ("a.txt", "b.txt"))
    for n in range(1, 40):
        root = tmp_path / str(n)
        root.mkdir()
        folder = CheckedFolder(root)
        folder.write(first)
        disk = Faulty(n, how)
        try:
            with on(disk):
                folder.write({"a.txt": "new a", "b.txt": "new b"})
        except (OSError, Died):
            pass
        else:
            assert n > 10
            return
        a, b = read_all(folder)
        assert a in (old[0], "new a")
        assert b in (old[1], "new b")
        assert b != "new b" or a == "new a"  # the last file marks the others as complete
        folder.settle()
        assert read_all(folder) == (a, b)
        states = json.loads((root / MANIFEST_FILE).read_text())["files"].values()
        assert all(len(each) == 1 for each in states)


@pytest.mark.parametrize("names", [False, True])
def test_a_power_cut_at_any_operation_leaves_old_or_new_files(names, tmp_path):
    for n in range(1, 40):
        root = tmp_path / str(n)
        root.mkdir()
        folder = CheckedFolder(root)
        folder.write({"a.txt": "old a", "b.txt": "old b"})
        disk = Forgetful(root, n, names)
        try:
            with on(disk):
                folder.write({"a.txt": "new a", "b.txt": "new b"})
                folder.forget(["a.txt"])
        except Died:
            disk.cut()
            a, b = read_all(folder)
            assert a in ("old a", "new a", None)
            assert b in ("old b", "new b")
            assert b != "new b" or a != "old a"
        else:
            assert n > 10
            return


def test_a_reader_beside_a_writer_sees_one_of_the_states(tmp_path, monkeypatch):
    """The file is replaced between the reading of the manifest and that of the file."""
    folder = CheckedFolder(tmp_path)
    folder.write({"a.txt": "old"})
    real = manifest._matches

    def replaced_meanwhile(path, state):
        monkeypatch.setattr(manifest, "_matches", real)
        folder.write({"a.txt": "new"})
        return real(path, state)

    monkeypatch.setattr(manifest, "_matches", replaced_meanwhile)
    assert folder.file("a.txt").read_text() == "new"


def test_lines_of_the_log_are_checked_beyond_the_last_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    log = RoundLog(folder, [record(1)])
    log.append(record(2))
    log.append(record(3))
    text = (tmp_path / "rounds.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    with io.locked(tmp_path):  # while the run goes on
        assert [one.round for one in folder.stream()] == [1, 2, 3]
        (tmp_path / "rounds.jsonl").write_text(text + '{"round": 4, "cli')  # being written
        assert [one.round for one in folder.stream()] == [1, 2, 3]
        (tmp_path / "rounds.jsonl").write_text(lines[0] + lines[2])
        with pytest.raises(UsageError, match="line 2 is round 3"):
            folder.records()
        (tmp_path / "rounds.jsonl").write_text(text.replace('"round": 3', '"round": 4'))
        with pytest.raises(UsageError, match="is damaged or was edited in line 3"):
            folder.records()
        assert len(folder.records(2)) == 2  # a resumed run needs no more
    assert folder.count_rounds() == 2


def test_of_a_killed_run_the_rounds_up_to_the_last_checkpoint_count(tmp_path):
    """Later rounds are not durable: a power cut, or damage, may take any number of them."""
    folder = RunFolder(tmp_path)
    log = RoundLog(folder, [record(1)])
    log.append(record(2))
    folder.write({}, log.sync())
    log.append(record(3))
    follower = folder.follow()
    follower.poll()
    assert [one.round for one in follower.records] == [1, 2]
    assert [one.round for one in folder.records()] == [1, 2]
    assert folder.count_rounds() == 3
    (tmp_path / io.LOCK_FILE).write_text("999999999")  # of a process that is gone
    assert [one.round for one in folder.records()] == [1, 2]
    with io.locked(tmp_path):
        follower.poll()
        assert [one.round for one in follower.records] == [1, 2, 3]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"method": "fedavg"}, {})
    io.make_folder(folder.checkpoints)
    orphans = [tmp_path / ".tmp-summary.json", folder.checkpoints / ".tmpX1yZ"]
    for orphan in orphans:
        orphan.write_text("half")
    folder.remove_leftovers()
    assert not any(orphan.exists() for orphan in orphans)
    assert folder.read_config() == {"method": "fedavg"}


def test_nobody_reads_files_of_a_run_around_the_manifest():
    """No module but `run_dir` builds the path of such a file: `folder / "summary.json"`."""
    source = Path(manifest.__file__).parents[1]
    known = {name for name in (*ENTRIES, "config.json", "compare.json") if "." in name}
    known -= {"report.html", "trackers.json", "preparation.json"}  # also files of nodes and sites
    found = []
    for file in source.rglob("*.py"):
        if file.name in ("run_dir.py", "manifest.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
                continue
            if isinstance(node.right, ast.Constant) and node.right.value in known:
                found.append(f"{file.relative_to(source)}:{node.lineno} {node.right.value}")
    assert found == []


def test_cells_that_a_spreadsheet_would_run_are_text():
    names = ["=1+1", "+a", "-b", "@c", "'=d", "-5", "north"]
    text = table_text({"client": list(range(7)), "name": names, "gain": [-1.5] * 7})
    lines = text.splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == [
        *("'=1+1", "'+a", "'-b", "'@c", "''=d", "-5", "north")
    ]
    assert all(line.endswith(",-1.5") for line in lines[1:])  # numbers stay numbers
    assert parse_names(text, "x") == dict(enumerate(names))
    assert parse_table(text, "x")["gain"] == [-1.5] * 7
    assert csv_text({"=cmd": [1]}) == "'=cmd\n1\n"


@pytest.mark.parametrize("text", ["", "\n", "client,a\n1\n", "a,b\n1,2\n", 'client,a\n"1', "\0"])
def test_a_damaged_table_of_clients_is_refused(text):
    with pytest.raises(UsageError, match="'x' is damaged"):
        parse_table(text, "x")
