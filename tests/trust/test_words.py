"""What leaves a client's machine, and what its server believes of it."""

import logging

import pytest
import torch

from equipoise.flower import certificates, codec, proxy
from equipoise.flower.client_state import ClientStateStore
from equipoise.flower.config import NodeConfig
from equipoise.flower.doctor import run_checks
from equipoise.flower.launch import PrintableFormatter
from equipoise.flower.node import encode_error
from equipoise.privacy.accountant import gaussian_epsilon, upload_cost
from equipoise.privacy.budget import OverBudget, PrivacyBudget
from equipoise.privacy.config import PrivacyConfig
from equipoise.tasks.remote_tables import LocalFolderData, RemoteTablesConfig
from equipoise.utils.errors import UsageError
from flower.test_remote import SUPERVISED, Here, federate
from helpers import small_task


def test_an_error_that_quotes_a_row_stays_at_home(tmp_path):
    (tmp_path / "train.csv").write_text("x,y\n1.0,0\nAlice Example,1\n")
    (tmp_path / "test.csv").write_text("x,y\n1.0,0\n")
    with pytest.raises(UsageError) as caught:
        LocalFolderData(RemoteTablesConfig(data=str(tmp_path)), 0)
    assert "Alice" in str(caught.value)  # the owner is told
    told = codec.decode(encode_error(caught.value))[1]["error"]
    assert told == "UsageError: the reason is in this client's own log"


def test_what_a_client_refuses_is_told_in_words():
    assert (
        codec.decode(encode_error(OverBudget("its max-epsilon is 3")))[1]["error"]
        == "its max-epsilon is 3"
    )
    assert (
        codec.decode(encode_error(codec.InvalidMessage("it answers another message")))[1]["error"]
        == "it answers another message"
    )


def test_a_task_that_fails_with_a_row_in_its_words_tells_the_server_nothing_of_it(tmp_path):
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    wire = Here(method, task, tmp_path)

    def fail(*about):
        raise ValueError("row 7 is Alice Example")

    wire.nodes[1]._round = fail
    log = federate(method, task, wire).run_round()
    assert "ValueError" in log.absent[1]
    assert "Alice" not in log.absent[1]


def test_text_of_others_cannot_forge_a_line_of_the_log():
    record = logging.LogRecord(
        "x", logging.INFO, "", 0, "from %s", ("a\nequipoise: all is well\x1b[2J",), None
    )
    assert (
        PrintableFormatter("equipoise: %(message)s").format(record)
        == r"equipoise: from a\nequipoise: all is well\x1b[2J"
    )


def test_a_client_judges_its_epsilon_at_its_own_delta(tmp_path):
    """A server that sets a large dp_delta makes epsilon look small; the client's own limit does not
    move.
    """
    loose = PrivacyConfig(dp_clip=1.0, dp_noise=2.0, dp_delta=0.5)
    own = gaussian_epsilon(upload_cost(2.0), 1e-5)
    assert gaussian_epsilon(upload_cost(2.0), 0.5) < own - 0.1
    with pytest.raises(OverBudget, match="own delta of 1e-05"):
        PrivacyBudget(tmp_path / "privacy.json", loose, own - 0.1).check()
    PrivacyBudget(tmp_path / "privacy.json", loose, own + 0.1).check()
    node = NodeConfig.from_dict(
        {"client-id": 0, "state-dir": "/tmp/x", "max-epsilon": 1.0, "max-delta": 1e-7}
    )
    assert node.max_delta == 1e-7
    with pytest.raises(UsageError, match="max-delta"):
        NodeConfig.from_dict({"client-id": 0, "state-dir": "/tmp/x", "max-delta": 2.0})


def test_the_proxy_limits_bodies_rates_and_paths():
    for line in (
        "client_max_body_size {body}m",
        "limit_req_zone",
        "limit_req zone=nodes",
        "$request_uri !~",
    ):
        assert line in proxy.NGINX


def test_what_a_client_keeps_is_its_own(tmp_path):
    ClientStateStore(tmp_path / "state", "run1", 0).save(1, {"local": {"w": torch.ones(2)}}, 0)
    for folder in (
        tmp_path / "state",
        tmp_path / "state" / "run1",
        tmp_path / "state" / "run1" / "client-0",
    ):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_keys_are_written_whole_and_for_their_owner_alone(tmp_path):
    certificates.write_certificates(tmp_path / "certs", ["localhost"], 1, 10)
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700
    for name in ("ca.key", "server.key", "node-0"):
        assert (tmp_path / "certs" / name).stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "certs").glob(".tmp-*"))


def test_the_doctor_names_databases_that_others_can_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, mode in (("link.db", 0o644), ("safe.db", 0o600)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    wrong = [found.text for found in run_checks("127.0.0.1:1", None) if found.verdict == "wrong"]
    assert "link.db can be read by others: chmod 600 link.db" in wrong
    assert not any("safe.db" in text for text in wrong)
