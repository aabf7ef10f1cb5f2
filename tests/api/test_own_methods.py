"""Methods of the user's own: classes, instances, files, notebook cells; and one sentence for each
mistake.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import equipoise as eq
from equipoise.core import Capabilities
from equipoise.methods import find_method, recorded_name

SMALL = {"clients": 4, "samples": 40, "rounds": 2, "epochs": 1, "executor": "stacked"}
FILE = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Client, Method, Params, State, option, merge_sent_blocks


@dataclass(frozen=True)
class Halfway(Method):
    """Install half of what came down."""

    name: ClassVar[str] = "halfway"
    needs_previous_model: ClassVar[bool] = True
    share: float = option(0.5, "share of the way to the received model")

    def receive(self, c: Client) -> tuple[Params, State]:
        sent = merge_sent_blocks(c)
        own = c.local_params
        return {name: own[name] + self.share * (sent[name] - own[name]) for name in sent}, c.state
'''


@dataclass(frozen=True)
class Cautious(eq.Method):
    """As in a notebook cell: no name, annotations that are texts."""

    capabilities: ClassVar[Capabilities] = Capabilities(needs_previous_model=True)

    caution: float = eq.option(0.5, "share of the way to go")

    def receive(self, c: eq.Client) -> tuple[eq.Params, eq.State]:
        sent = eq.merge_sent_blocks(c)
        return {
            name: c.local_params[name] + self.caution * (sent[name] - c.local_params[name])
            for name in sent
        }, c.state


def test_a_file_with_annotations_as_texts_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "halfway.py").write_text(FILE)
    found = find_method(f"{tmp_path}/halfway.py:Halfway")
    assert found(share=0.25).share == 0.25
    assert "halfway" not in sys.modules  # the name may be that of a module that others import


def test_class_instance_and_name_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "halfway.py").write_text(FILE)
    named = eq.run(tmp_path / "a", method=f"{tmp_path}/halfway.py:Halfway", share=0.3, **SMALL)
    instance = eq.run(tmp_path / "b", method=Cautious(caution=0.3), **SMALL)
    kind = eq.run(tmp_path / "c", method=Cautious, caution=0.3, **SMALL)
    assert named.final.personal == instance.final.personal == kind.final.personal
    assert instance.config["caution"] == 0.3
    assert Cautious.name == "cautious"


def test_shipped_classes_are_recorded_by_name(tmp_path: Path) -> None:
    run = eq.run(tmp_path / "a", method=eq.methods.FedProx(mu=0.1), **SMALL)
    assert (run.config["method"], run.config["mu"]) == ("fedprox", 0.1)
    assert recorded_name(eq.methods.FedAvg) == "fedavg"
    with pytest.raises(eq.UsageError, match="twice"):
        eq.run(tmp_path / "b", method=eq.methods.FedProx(mu=0.1), mu=0.2, **SMALL)


def test_a_class_of_main_works_and_says_how_to_resume(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = FILE.replace("from equipoise.core", "import equipoise as eq\nfrom equipoise.core")
    sizes = "clients=4, samples=40, rounds=2, epochs=1"
    go = f"eq.run('{tmp_path}/out', method=Halfway(share=0.3), {sizes})"
    script.write_text(
        f"{text}\n\nrun = {go}\nprint(run.config['method'], run.resume().final.rounds)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["python:Halfway", "2"], done.stderr
    with pytest.raises(
        eq.UsageError, match=r"'Halfway' was given in Python: go on with run.resume\(\)"
    ):
        eq.open(tmp_path / "out").resume()


def wrong(**hooks: object) -> type[eq.Method]:
    return dataclass(frozen=True)(type("Wrong", (eq.Method,), hooks))


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        (
            {"receve": lambda self, c: (c.local_params, c.state)},
            r"Wrong.receve is not a hook .* did you mean 'receive'\?",
        ),
        ({"agregate": lambda self, s, ids, up, w: s.params}, "did you mean 'aggregate'"),
        (
            {"receive": lambda self, c: eq.merge_sent_blocks(c)},
            r"Wrong.receive returns one value \(dict\): .* two, the model",
        ),
        (
            {"train": lambda self, c: (c.start, c.state, 1)},
            "Wrong.train returns 3 values: it must return two",
        ),
        (
            {"upload": lambda self, c: (c.trained, c.state)},
            "Wrong.upload returns a dict as its first value: .* a ClientUpdate",
        ),
        (
            {"aggregation_weights": lambda self, s, ids, up: eq.equal_weights(ids)},
            r"Wrong.aggregation_weights returns one value \(Tensor\)",
        ),
        (
            {
                "receive": lambda self, c: (
                    {n: v + torch.rand(()) for n, v in eq.merge_sent_blocks(c).items()},
                    c.state,
                )
            },
            "Wrong.receive cannot be computed for many clients at once: .* use client.uniform",
        ),
        (
            {
                "receive": lambda self, c: (
                    eq.merge_sent_blocks(c),
                    {"share": c.evaluate(c.message.params)["acc"].item()},
                )
            },
            r"Wrong.receive cannot .* \.item\(\)",
        ),
        (
            {
                "receive": lambda self, c: (
                    c.local_params
                    if c.evaluate(c.local_params)["acc"] > 2
                    else eq.merge_sent_blocks(c),
                    c.state,
                )
            },
            "Wrong.receive cannot .* use torch.where",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_the_hook(
    hooks: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(eq.UsageError, match=words):
        eq.run(tmp_path / "run", method=wrong(needs_previous_model=True, **hooks), **SMALL)


def test_other_mistakes_of_authors(tmp_path: Path) -> None:
    class Bare(eq.Method):
        share: float = eq.option(0.5, "an option")

    with pytest.raises(
        eq.UsageError, match=r"Bare has the option 'share': write @dataclass\(frozen=True\)"
    ):
        eq.run(tmp_path / "a", method=Bare, **SMALL)
    with pytest.raises(
        eq.UsageError, match=r"give a name, a subclass of equipoise\.Method, or an instance"
    ):
        eq.run(tmp_path / "a", method=int, **SMALL)  # type: ignore[arg-type]

    def _helper(self: eq.Method) -> int:
        return 1

    assert eq.run(
        tmp_path / "b", method=wrong(_instal=_helper, something_else=_helper), **SMALL
    ).is_finished
