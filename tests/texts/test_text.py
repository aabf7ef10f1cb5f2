"""Texts under pretrained models: the library's own numbers, the same on both executors, and errors
in one sentence.
"""

import importlib
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import equipoise as eq
from equipoise.cli import main
from equipoise.core import LocalTrainRequest, RngContext
from equipoise.data.text import texts_from_python
from equipoise.experiment.runner import run
from equipoise.models.huggingface import NextTokenModel, TextClassifier, causal_lm, text_classifier
from equipoise.models.lora import LoraConfig, LoraConv1D, add_adapters
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.tasks import find_task
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, timeless

from .conftest import VOCABULARY, rows

COLUMNS = {"text": "review", "target": "mood", "client_column": "who"}
ASKED = ["--text", "review", "--target", "mood", "--client-column", "who"]
ROW = torch.tensor([[3, 9, 4, -1, -1], [5, 6, 7, 8, 9]])


def built(data: Path, model: Path, adapter: str = "", **options: Any) -> ExamplesTask:
    spec = find_task("text")
    config = spec.config(data=str(data), pretrained=str(model), **COLUMNS, **options)
    task = spec.build(config, "", spec.training, 3)
    assert isinstance(task, ExamplesTask)
    return task.with_network("", adapter, "", 0) if adapter else task


def run_words(pretrained: Path, reviews: Path) -> list[str]:
    """Return the command that trains the small BERT on reviews."""
    files = ["--data", str(reviews), "--pretrained", str(pretrained / "bert")]
    return ["run", "--task", "text", *files, *ASKED]


def test_a_next_token_loss_is_the_librarys_own(pretrained: Path) -> None:
    module = causal_lm(str(pretrained / "gpt2"), 0)
    assert isinstance(module, NextTokenModel)
    assert not module.full_mask, "a causal model must not see what follows"
    with torch.no_grad():
        found = module(ROW)
        for row, length in ((0, 3), (1, 5)):
            alone = ROW[row : row + 1, :length]
            said = module.model(input_ids=alone, labels=alone)
            right = (said.logits[0, :-1].argmax(-1) == alone[0, 1:]).float().mean()
            assert torch.allclose(found[row], torch.stack([said.loss, right]), atol=1e-6)


def test_a_classifier_reads_texts_to_their_end_and_no_further(pretrained: Path) -> None:
    module = text_classifier(str(pretrained / "bert"), 3, seed=0)
    assert isinstance(module, TextClassifier)
    assert module.full_mask
    with torch.no_grad():
        alone = module.model(input_ids=ROW[:1, :3]).logits
        assert torch.allclose(module(ROW)[:1], alone, atol=1e-6)
    again, other = (text_classifier(str(pretrained / "bert"), 3, seed) for seed in (0, 1))
    assert torch.equal(again.model.classifier.weight, module.model.classifier.weight)
    assert not torch.equal(other.model.classifier.weight, module.model.classifier.weight), (
        "the head is drawn by seed"
    )
    base, same = (found.model.bert.embeddings.word_embeddings.weight for found in (module, other))
    assert torch.equal(base, same)


@pytest.mark.parametrize(("model", "kind"), [("bert", "classification"), ("gpt2", "next-token")])
@pytest.mark.parametrize("adapter", ["", "rank=2"])
def test_a_stack_of_clients_learns_as_one_after_another(
    pretrained: Path,
    reviews: Path,
    model: str,
    kind: str,
    adapter: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With dropout, short batches, and so little memory that two clients are a portion."""
    task = built(reviews, pretrained / model, adapter, kind=kind)
    task.check()
    assert task.info.stackable
    assert task.info.has_train_mode, "dropout layers take part"
    start, ids = task.init_params(0), torch.arange(task.info.num_clients)
    lr = torch.full((4,), 0.1)
    stack = {name: value.expand(4, *value.shape).clone() for name, value in start.items()}
    when = RngContext(0, 1, task.info.training)
    fit = LocalTrainRequest(stack, torch.ones_like(ids), lr, trainable=tuple(start))
    one = [
        task.fit(
            ids[k],
            LocalTrainRequest(start, ids[k] * 0 + 1, lr[k], trainable=tuple(start)),
            {},
            when,
        )[0]
        for k in range(4)
    ]
    wanted = {name: torch.stack([own[name] for own in one]) for name in start}
    assert largest_difference(wanted, stack) > 1e-4
    assert largest_difference(task.fit_stack(ids, fit, {}, when)[0], wanted) < 1e-5
    size = task.row_bytes() * min(task.info.training.batch_size, int(task.num_examples(ids).max()))
    monkeypatch.setattr("equipoise.tasks.supervised.MAX_ACTIVATION_BYTES", 2 * size)
    assert largest_difference(task.fit_stack(ids, fit, {}, when)[0], wanted) < 1e-5
    assert task.evaluate_stack(ids, stack, "test")["loss"].isfinite().all()


def test_heads_of_a_language_model_are_scored_one_by_one_or_together(
    pretrained: Path, reviews: Path
) -> None:
    """Before anything else was computed with the task, as where one client follows another."""
    task = built(reviews, pretrained / "gpt2", "rank=2 names=shared,private", kind="next-token")
    start, names = task.init_params(0), task.info.blocks["private"]
    heads = {name: torch.randn(3, *start[name].shape) for name in names}
    found = task.evaluate_heads(torch.tensor(1), start, heads, "test")
    each = [
        task.evaluate(torch.tensor(1), start | {n: w[k] for n, w in heads.items()}, "test")
        for k in range(3)
    ]
    assert (
        largest_difference(
            found, {name: torch.stack([one[name] for one in each]) for name in found}
        )
        < 1e-5
    )


def test_gpt2_keeps_weights_transposed_and_adapters_know_it(pretrained: Path) -> None:
    plain = causal_lm(str(pretrained / "gpt2"), 0).model.transformer.h[0].attn.c_attn
    module = add_adapters(torch.nn.Sequential(plain), LoraConfig(rank=2, alpha=4), 0)
    own = module[0]
    assert isinstance(own, LoraConv1D)
    torch.nn.init.normal_(own.adapter.B)
    x = torch.randn(3, 8)
    weight = plain.weight + 2 * (own.adapter.B @ own.adapter.A).T
    assert torch.allclose(module(x), x @ weight + plain.bias, atol=1e-5)


def test_on_the_command_line_only_adapters_travel(
    pretrained: Path, reviews: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = run_words(pretrained, reviews)
    words += [
        "--adapter",
        "rank=2 targets=*.query,*.value train=*.classifier.*",
        "--method",
        "fedper",
        "--rounds",
        "1",
    ]
    assert main([*words, "--executor", "stacked", "--out", str(out)]) == 0
    frozen, kept = (
        load_file(out / "models" / "frozen.safetensors"),
        load_file(out / "models" / "shared.safetensors"),
    )
    assert all(name.endswith((".A", ".B")) for name in kept), (
        "FedPer keeps the block head at the client"
    )
    assert "model.bert.embeddings.word_embeddings.weight" in frozen
    travelled = sum(value.nbytes for value in kept.values())
    told = json.loads((out / "summary.json").read_text())["bytes"]
    assert told["down"] == 4 * travelled
    assert main(["export", str(out), "--client", "1", "--format", "safetensors"]) == 0
    assert (
        main(
            [
                "predict",
                str(out),
                str(reviews),
                "--client",
                "user1",
                "--out",
                str(tmp_path / "said.csv"),
            ]
        )
        == 0
    )
    assert (tmp_path / "said.csv").read_text().splitlines()[0] == "row,predicted,p(down),p(up)"
    again = eq.open(out).predict(["good film", "awful plot"], "user1", probabilities=True)
    assert again.shape == (2, 2)
    with pytest.raises(UsageError, match="3 is no text: give a list of texts"):
        eq.open(out).predict([3], "user1")


def test_a_cut_run_goes_on_and_processes_agree(
    pretrained: Path, reviews: Path, tmp_path: Path
) -> None:
    """To the bit, dropout and all."""
    given = {
        "task": "text",
        "data": str(reviews),
        "pretrained": str(pretrained / "bert"),
        **COLUMNS,
        "rounds": 2,
    }
    given |= {"adapter": "rank=2", "save_personal": False, "threads": 1}
    loop = ExperimentConfig.from_options({**given, "executor": "loop"})
    whole = timeless(run(loop, tmp_path / "whole"))
    assert timeless(cut_and_resumed(loop, tmp_path / "cut", at=1)) == whole
    spread = timeless(run(loop, tmp_path / "spread", resources=ResourceConfig(processes=2)))
    assert replace(spread, about=whole.about) == whole


def test_a_data_set_a_saved_one_and_a_table_are_the_same(
    pretrained: Path, reviews: Path, tmp_path: Path
) -> None:
    datasets = importlib.import_module("datasets")
    table = built(reviews, pretrained / "bert")
    kinds = {name: datasets.Value("string") for name in ("who", "review")}
    kinds["mood"] = datasets.ClassLabel(names=["up", "down"])
    coded = [{**row, "mood": int(row["mood"] == "down")} for row in rows()]
    held = datasets.Dataset.from_list(coded, datasets.Features(kinds))
    datasets.DatasetDict(train=held, test=held.select(range(8))).save_to_disk(
        str(tmp_path / "saved")
    )
    assert built(tmp_path / "saved", pretrained / "bert").fingerprint() == table.fingerprint()
    task = eq.Task.from_texts(held, pretrained=pretrained / "bert", adapter="rank=2", **COLUMNS)
    result = eq.run(tmp_path / "python", method="fedavg", task=task, rounds=1)
    assert type(result.model("user2").model).__name__ == "BertForSequenceClassification"
    with pytest.raises(
        UsageError, match="the data set has no split 'dev': it has train, test; see --split"
    ):
        built(tmp_path / "saved", pretrained / "bert", split="dev")


def test_tables_in_python_by_client_or_with_a_column_of_clients() -> None:
    """A pandas table, columns by name, and a table for each client, of
    which one is the server's.
    """
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows())
    config = find_task("text").config(**COLUMNS)
    whole = texts_from_python(frame, config)
    assert (whole.clients, whole.classes) == (("user0", "user1", "user2", "user3"), ("down", "up"))
    assert (
        texts_from_python({name: frame[name].tolist() for name in frame}, config).texts
        == whole.texts
    )
    apart = {name: own.drop(columns="who") for name, own in frame.groupby("who")}
    assert texts_from_python(apart, config).texts == whole.texts
    served = texts_from_python(
        {("server" if name == "user3" else name): own for name, own in apart.items()}, config
    )
    assert served.server is not None
    assert (len(served.clients), served.server[0]) == (3, apart["user3"]["review"].tolist())


BAD: dict[str, tuple[list[str], str]] = {
    "column": (["--text", "reveiw"], r"no column 'reveiw' \(did you mean 'review'\?\): see --text"),
    "target": (["--target", "moods"], r"no column 'moods' \(did you mean 'mood'\?\): see --target"),
    "client": (["--client-column", "whom"], r"no client column 'whom' .*see --client-column"),
    "folder": (
        ["--pretrained", "./nowhere"],
        r"there is no folder './nowhere' for the pretrained model",
    ),
    "network": (
        ["--pretrained", "some-model"],
        r"'some-model' cannot be loaded from the hub .*is there a network",
    ),
    "data": (
        ["--data", "nobody/reviews"],
        r"the data set 'nobody/reviews' cannot be loaded from the hub",
    ),
    "table": (["--data", "nofile.csv"], r"there is no table 'nofile.csv'"),
    "nothing": (["--pretrained", ""], r"task 'text' needs --pretrained"),
    "causal": (
        ["--kind", "next-token"],
        r"bert' sees the tokens that it is to predict: give a causal",
    ),
    "adapter": (["--adapter", "targets=*.querry"], r"adapter targets=\*.querry matches no layer"),
}


@pytest.mark.parametrize("which", BAD)
def test_a_mistake_is_told_in_one_sentence_before_any_work(
    which: str,
    pretrained: Path,
    reviews: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(importlib.import_module("datasets").config, "HF_HUB_OFFLINE", True)
    words = run_words(pretrained, reviews)
    mistake, sentence = BAD[which]
    assert main([*words, *mistake, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, " ".join(said.split())), said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_an_empty_text_a_lone_class_a_long_text_and_a_strange_tokenizer(
    pretrained: Path, reviews: Path, tmp_path: Path
) -> None:
    whole = reviews.read_text().splitlines()
    empty = tmp_path / "empty.csv"
    empty.write_text("\n".join([*whole[:5], "user1,,up", *whole[5:]]))
    with pytest.raises(UsageError, match="'user1': column 'review' is empty in row 6"):
        built(empty, pretrained / "bert")
    alone = tmp_path / "alone.csv"
    alone.write_text("\n".join(line.replace("down", "up") for line in whole))
    with pytest.raises(UsageError, match="column 'mood' has one class only, 'up'"):
        built(alone, pretrained / "bert")
    wordy = tmp_path / "wordy.csv"
    wordy.write_text("\n".join([*whole, f"user1,{'very ' * 40},up"]))
    with pytest.raises(
        UsageError, match="texts have up to 40 tokens, and the model reads 32: give --length 32"
    ):
        built(wordy, pretrained / "bert")
    assert built(wordy, pretrained / "bert", length=32).data.shape == (32,)
    short = tmp_path / "short"
    transformers = importlib.import_module("transformers")
    transformers.BertModel(
        transformers.BertConfig(
            vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    ).save_pretrained(short)
    transformers.AutoTokenizer.from_pretrained(pretrained / "bert").save_pretrained(short)
    with pytest.raises(
        UsageError, match=f"gives token {len(VOCABULARY) - 1}, and the model knows 4"
    ):
        built(reviews, short)
    bare = shutil.copytree(
        pretrained / "gpt2", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*")
    )
    with pytest.raises(
        UsageError, match=r"there is no tokenizer in '.*bare' that makes anything of these texts"
    ):
        built(reviews, bare, kind="next-token")


def test_without_the_extra_its_name_is_told(
    reviews: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"needs transformers: pip install 'equipoise\[text\]'"):
        built(reviews, pretrained / "bert")
