"""Models travel: a folder for others, with a card, made from a run and loaded without it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import equipoise as eq

pytest.importorskip("pyarrow", reason="the extra data is not installed")
SITES = ("north", "south", "west")


def table(seed: int) -> dict[str, list[object]]:
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, 60)
    colour = rng.choice(["red", "blue"], 60)
    return {"age": age.tolist(), "colour": colour.tolist(), "ill": (age > 55).astype(int).tolist()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> eq.Run:
    task = eq.Task.from_tables(
        {site: table(seed) for seed, site in enumerate(SITES)}, target="ill", standardise="client"
    )
    return eq.run(tmp_path_factory.mktemp("models") / "run", method="finetune", task=task, rounds=6)


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_folder_predicts_as_its_run(run: eq.Run, tmp_path: Path) -> None:
    folder = run.save_pretrained(tmp_path / "heart", license="apache-2.0", consent=["north"])
    assert files(folder) == [
        "README.md",
        "clients/north.safetensors",
        "config.json",
        "model.safetensors",
        "preparation.json",
    ]
    model = eq.load(folder)
    rows = {"age": [30, 80, None], "colour": ["red", "blue", "green"]}
    assert model.clients == ("north",)
    for client in (None, "north"):
        expected = run.predict(rows, client, probabilities=True)
        assert np.array_equal(model.predict(rows, client, probabilities=True), expected)
    assert model.predict(rows).dtype.kind == "i"
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows, index=["a", "b", "c"])
    assert model.predict(frame, "north").index.tolist() == ["a", "b", "c"]


def test_the_card_says_what_one_must_know(run: eq.Run, tmp_path: Path) -> None:
    folder = run.save_pretrained(tmp_path / "heart", license="apache-2.0", consent=["north"])
    text = (folder / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "apache-2.0"
    assert "personal models of north" in body
    assert "among 3 clients" in body
    assert "classification of `ill`, one of 0, 1" in body
    assert "not differentially private" in body
    assert "95 % interval" in body
    assert "| global | " in body


def test_nobody_is_named_without_consent(run: eq.Run, tmp_path: Path) -> None:
    folder = run.save_pretrained(tmp_path / "heart")
    for name in files(folder):
        content = (folder / name).read_bytes().decode("latin-1")
        assert not [site for site in SITES if site in content], name
    assert "license: unknown" in (folder / "README.md").read_text()
    assert eq.load(folder).clients == ()
    with pytest.raises(eq.UsageError, match="has no model of client 'north'"):
        eq.load(folder).predict({"age": [30], "colour": ["red"]}, "north")


def test_mistakes_are_named(run: eq.Run, tmp_path: Path) -> None:
    with pytest.raises(eq.UsageError, match=r"no client 'nort' \(did you mean 'north'"):
        run.save_pretrained(tmp_path / "a", consent=["nort"])
    folder = run.save_pretrained(tmp_path / "a")
    with pytest.raises(eq.UsageError, match=r"exists already.*overwrite=True"):
        run.save_pretrained(folder)
    run.save_pretrained(folder, overwrite=True)
    (tmp_path / "photos").mkdir()
    with pytest.raises(eq.UsageError, match="exists already"):  # never remove what is no model
        run.save_pretrained(tmp_path / "photos", overwrite=True)
    with pytest.raises(eq.UsageError, match="holds no model"):
        eq.load(tmp_path)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(eq.UsageError, match="damaged"):
        eq.load(folder).model()
    card = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**card, "model": "os.system"}))
    with pytest.raises(eq.UsageError, match=r"'os\.system', which is not shipped"):
        eq.load(folder)


def test_methods_without_a_global_model_share_by_consent(tmp_path: Path) -> None:
    task = eq.Task.from_tables({site: table(k) for k, site in enumerate(SITES)}, target="ill")
    alone = eq.run(tmp_path / "alone", method="local", task=task, rounds=1)
    with pytest.raises(eq.UsageError, match="has no global model: name the clients"):
        alone.save_pretrained(tmp_path / "out")
    folder = alone.save_pretrained(tmp_path / "out", consent=["west"])
    rows = {"age": [30.0], "colour": ["red"]}
    assert eq.load(folder).predict(rows, "west") == alone.predict(rows, "west")
    with pytest.raises(eq.UsageError, match="no global model: choose one of the clients west"):
        eq.load(folder).predict(rows)


def test_networks_of_the_user_and_agents_do_not_travel(tmp_path: Path) -> None:
    from torch import nn

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(30, 2)).astype("f4"), rng.integers(0, 2, 30)) for _ in range(2)]
    own = eq.run(
        tmp_path / "own", task=eq.Task.from_datasets(data, model=nn.Linear(2, 2)), rounds=1
    )
    with pytest.raises(eq.UsageError, match=r"torch\.save"):
        own.save_pretrained(tmp_path / "out")


def test_trees_travel(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="the extra trees is not installed")
    task = eq.Task.from_tables({site: table(k) for k, site in enumerate(SITES)}, target="ill")
    run = eq.run(tmp_path / "trees", method="fedtrees", task=task, model="trees", rounds=2)
    rows = {"age": [30.0, 80.0], "colour": ["red", "blue"]}
    loaded = eq.load(run.save_pretrained(tmp_path / "out"))
    assert np.array_equal(
        loaded.predict(rows, probabilities=True), run.predict(rows, probabilities=True)
    )


def test_the_hub_gets_the_folder(run: eq.Run, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    calls: list[object] = []

    class Api:
        def __init__(self, **about: str) -> None:
            assert about["library_name"] == "equipoise"

        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            calls.append((name, private))
            return f"https://huggingface.co/{name}"

        def upload_folder(self, *, repo_id: str, folder_path: str) -> None:
            shutil.copytree(folder_path, tmp_path / "hub")

    monkeypatch.setattr(hub, "HfApi", Api)
    assert run.push_to_hub("clinic/heart", license="mit") == "https://huggingface.co/clinic/heart"
    assert calls == [("clinic/heart", True)]
    assert "license: mit" in (tmp_path / "hub" / "README.md").read_text()
    assert eq.load(tmp_path / "hub").predict({"age": [90.0], "colour": ["red"]}).tolist() == [1]
    monkeypatch.setattr(Api, "create_repo", lambda *a, **k: (_ for _ in ()).throw(OSError("away")))
    with pytest.raises(eq.UsageError, match="did not take 'clinic/heart': away"):
        run.push_to_hub("clinic/heart")


def test_without_the_extra_the_hub_is_refused(run: eq.Run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(eq.UsageError, match=r"needs huggingface_hub.*equipoise\[hub\]"):
        run.push_to_hub("clinic/heart")
