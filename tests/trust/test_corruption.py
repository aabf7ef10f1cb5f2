"""A small dose of `python -m trust.corruption`."""

from trust.corruption import COMMANDS, corrupt


def test_damaged_files_never_change_a_result_in_silence(tmp_path):
    found = corrupt(cases=60, minutes=2.0, seed=7, root=tmp_path)
    assert found.cases > 20
    assert found.refused > 0
    assert not found.failed, found.in_words()


def test_every_kind_of_folder_is_read_by_every_command_that_can():
    assert len(COMMANDS["finished"]) == 12
