"""Options of the run itself: method, task, rounds, device, evaluation, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.config.schema import Options, Scheduled, option
from equipoise.simulation.executor_selection import EXECUTORS


@dataclass(frozen=True)
class RunConfig(Options):
    """Options of the run itself."""

    method: str = option("fedavg", "method, or your own as module:Class or file.py:Class")
    task: str = option("synthetic", "task")
    model: str = option("", "model; empty for the task's default")
    init_weights: str = option(
        "", "safetensors file of the model that training starts from; empty to draw it by the seed"
    )
    adapter: str = option(
        "",
        "freeze the model and train low-rank adapters, as 'rank=8 targets=*.fc "
        "names=shared,private train=head.*'",
    )
    blocks: str = option(
        "",
        "blocks of the model, as 'base=features.* head=fc.*,classifier.*'; empty for those that it "
        "declares",
    )
    rounds: int = option(100, "federated rounds", low=1)
    seed: int = option(0, "seed of data, initial model, cohorts and batches", low=0)
    participation: Scheduled[float] = option(
        1.0, "share of the clients that take part in a round", above=0, high=1
    )
    selection: str = option(
        "uniform",
        "who is asked: uniform, size, loss (power of choice), oort (utility and speed), fair, "
        "learned, or your own as module:Class or file.py:Class",
    )
    executor: str = option(
        "auto",
        "stacked (all clients at once), loop (one after another), or auto: what suits the model",
        choices=EXECUTORS,
    )
    threads: int = option(
        1, "threads of one tensor operation, unless auto finds more to be faster", low=1, high=1024
    )
    device: str = option(
        "auto", "where networks are computed: cpu, cuda, or auto: cuda where there is one"
    )
    robust: str = option(
        "",
        "rule that hostile clients cannot move far: bound:L, adaptive:M, median, trimmed:S, "
        "geometric, krum:S, multikrum:S, centred:M or trust",
    )
    secure: bool = option(
        False,
        "the server sees exact sums of uploads alone; where clients are elsewhere, by masks that "
        "cancel",
    )
    attack: str = option(
        "",
        "simulated hostile clients, as name:share: flip, scaled, noise, constant, huge, broken, "
        "metrics, little, under, cap, steady, rate-lie, size-lie, sleeper, measurements, labels "
        "or backdoor",
    )
    holdout_clients: float = option(
        0.0, "share of the clients kept out of training, to see how newcomers adapt", low=0, below=1
    )
    metric: str = option(
        "", "the score that tables, tuning and agents read, such as auc; empty for the task's own"
    )
    eval_every: int = option(
        1, "rounds between evaluations; the last round is always evaluated", low=1
    )
    checkpoint_every: int = option(10, "rounds between checkpoints", low=1)
    patience: int = option(
        -1,
        "stop after this many evaluations without a lower validation loss; 0 for never; -1 for "
        "the usual: 10 on tables, never elsewhere, nor for trees, which have tree_patience",
        low=-1,
    )
    finetune: bool = option(
        False, "also score the personal models after validation-stopped local fine-tuning"
    )
    local_baseline: bool = option(
        False,
        "also train every client alone for as many rounds, to show that score beside its personal "
        "one",
    )
    save_personal: bool = option(True, "keep every client's personal model in the run folder")
