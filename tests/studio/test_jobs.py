"""Jobs are ordinary commands that outlive the studio."""

import time

import pytest

from equipoise.studio.jobs import JobStore
from equipoise.utils.errors import UsageError

SECONDS = 60


def wait_for(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def long_run(out):
    rounds = ["--rounds", "100000", "--clients", "3", "--samples", "60", "--epochs", "1"]
    return ["run", *rounds, "--out", str(out)]


def test_a_job_is_found_again_by_another_studio(tmp_path):
    job = JobStore(tmp_path / "jobs").start(["--version"], tmp_path / "out", tmp_path)
    again = JobStore(tmp_path / "jobs")
    assert again.all() == [job]
    assert again.latest(tmp_path / "out") == job
    wait_for(lambda: not again.find(job.id).is_running)
    assert again.output(job).startswith("equipoise ")
    assert job.command == "equipoise --version"


def test_a_job_stops_after_its_round_and_can_be_resumed(tmp_path):
    jobs = JobStore(tmp_path / "jobs")
    out = tmp_path / "out"
    job = jobs.start(long_run(out), out, tmp_path)
    wait_for(
        lambda: (out / "rounds.jsonl").is_file() and "\n" in (out / "rounds.jsonl").read_text()
    )
    with pytest.raises(UsageError, match="already running"):
        jobs.start(["resume", str(out)], out, tmp_path)
    jobs.stop(job)
    assert not job.is_running
    assert "equipoise resume" in jobs.output(job)
    assert (out / "checkpoint").is_dir()


def test_a_number_that_another_process_got_is_not_the_job(tmp_path):
    jobs = JobStore(tmp_path / "jobs")
    job = jobs.start(["--version"], tmp_path / "out", tmp_path)
    wait_for(lambda: not job.is_running)
    record = tmp_path / "jobs" / job.id / "job.json"
    record.write_text(record.read_text().replace(f'"pid":{job.pid}', '"pid":1'))
    assert not jobs.find(job.id).is_running


def test_damaged_records_are_skipped_and_forgotten_ones_are_gone(tmp_path):
    jobs = JobStore(tmp_path / "jobs")
    job = jobs.start(["--version"], tmp_path / "out", tmp_path)
    (tmp_path / "jobs" / "damaged").mkdir()
    (tmp_path / "jobs" / "damaged" / "job.json").write_text("{")
    assert jobs.all() == [job]
    wait_for(lambda: not job.is_running)
    jobs.forget(tmp_path / "out")
    assert jobs.all() == []
    with pytest.raises(UsageError, match="not known"):
        jobs.find(job.id)
