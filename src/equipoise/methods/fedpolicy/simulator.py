"""Many small federations at once: what a policy is trained on.

All federations of a batch are computed in one stack: models are `[E, C, ...]` for E federations of
C clients. A client is a network with one hidden layer, whose gradient is written by hand. `play`
runs them to the end with FedAvgM, block weights, probes and holds as in `fedpolicy.py`, and with
the gate's evidence and decisions (`gate.py`), which the policy observes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.methods.fedpolicy.evidence import (
    certain_head_gain,
    shrunk_advantages,
    update_alignment,
)
from equipoise.methods.fedpolicy.gate import (
    ALIGNED_ROUNDS,
    BODY_PART,
    NONE_PART,
    SMOOTHING,
    GateEvidence,
    gate_decisions,
    lack_of_alignment,
)
from equipoise.methods.fedpolicy.network import FOUR_PARTS, Observation, client_features
from equipoise.methods.fedpolicy.policies import hold_rounds
from equipoise.methods.fedpolicy.state import BASE_MOMENTUM, FULL_STEP_WEIGHT
from equipoise.rl.nn import DTYPE

INPUTS = 20
HIDDEN = 24
CLASSES = 10
MODES = 4  # clusters of inputs in each class
BATCH_ROWS = 16
TEST_ROWS = 240
STALENESS_DECAY = 0.5
TUNING_EPOCHS = 4
TUNING_RATE = 0.1  # of the rate of the first round
TUNING_MIN_ERRORS = 2.0  # standard errors by which it must pay, as at the end of a real run
MAX_ROWS = 120  # training rows of a client
GATE_CHOICES = torch.tensor([True, True, False, True])  # all parts but `head`


class Federations(NamedTuple):
    """Data of E federations of C clients.

    Attributes:
        x: Training inputs `[E, C, MAX_ROWS, INPUTS]`; rows from `size` on are not used.
        y: Their labels `[E, C, MAX_ROWS]`.
        size: Training rows `[E, C]`.
        val_x: Validation inputs, of which `val_size` count.
        val_y: Their labels.
        val_size: Validation rows `[E, C]`.
        test_x: Test inputs `[E, C, TEST_ROWS, INPUTS]`.
        test_y: Their labels.
        lr: Learning rate of the first round `[E]`.
        falls: Whether the rate falls to a hundredth over the run `[E]`.
        epochs: Local epochs `[E]`.
        momentum: Of the server's step `[E]`.
        kind: Name of each federation's population.
    """

    x: Tensor
    y: Tensor
    size: Tensor
    val_x: Tensor
    val_y: Tensor
    val_size: Tensor
    test_x: Tensor
    test_y: Tensor
    lr: Tensor
    falls: Tensor
    epochs: Tensor
    momentum: Tensor
    kind: tuple[str, ...]


def _sample_gamma(alpha: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from Gamma(alpha, 1) with a generator, which torch's distributions do not take."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        sample = torch.distributions.Gamma(alpha, torch.ones_like(alpha)).sample()
        generator.set_state(torch.get_rng_state())
    return sample


VIEWS = ("plain", "turned", "scrambled", "relabelled")
VIEW_SHARES = (0.65, 0.15, 0.1, 0.1)


class Population(NamedTuple):
    """How the clients of one federation differ: G groups, each with its view of the data.

    Attributes:
        centers: Centres of the clusters of inputs `[CLASSES, MODES, INPUTS]`.
        turns: Rotations `[4, INPUTS, INPUTS]` of the clients of a turned group.
        group_of: The group of each client `[C]`.
        views: The view of each group `[G]`, a place in `VIEWS`.
        is_skewed: Whether the labels of a group are skewed `[G]`.
        log_alpha: Logarithm of the Dirichlet concentration of its labels `[G]`.
        has_few: Whether its clients have a quarter of the rows `[G]`.
        size_sigma: Standard deviation of the log sizes.
        typical_size: Median of the sizes.
    """

    centers: Tensor
    turns: Tensor
    group_of: Tensor
    views: Tensor
    is_skewed: Tensor
    log_alpha: Tensor
    has_few: Tensor
    size_sigma: float
    typical_size: float

    def describe(self) -> str:
        """Return the name of the population: the view, labels and sizes of each group."""
        names = []
        for group, view in enumerate(self.views.tolist()):
            skew = f"skewed {self.log_alpha[group].exp():.2f}" if self.is_skewed[group] else "even"
            few = ", few rows" if self.has_few[group] else ""
            names.append(f"{VIEWS[view]}, {skew}{few}")
        return " | ".join(names)


def _uniform(low: float, high: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers `[count]` between two bounds."""
    return low + (high - low) * torch.rand(count, generator=generator)


def draw_population(clients: int, generator: torch.Generator) -> Population:
    """Draw a population of clients that need different things.

    Args:
        clients: Number C of clients.
        generator: The source of randomness.

    Returns:
        The population.
    """
    separation = float(_uniform(0.9, 2.0, 1, generator))
    centers = torch.randn(CLASSES, MODES, INPUTS, generator=generator)
    rotations = torch.linalg.qr(torch.randn(4, INPUTS, INPUTS, generator=generator)).Q
    num_groups = int(torch.randint(1, 4, (1,), generator=generator))
    return Population(
        centers=separation * centers / math.sqrt(2),
        turns=rotations,
        group_of=torch.arange(clients) * num_groups // clients,
        views=torch.multinomial(torch.tensor(VIEW_SHARES), num_groups, True, generator=generator),
        is_skewed=torch.rand(num_groups, generator=generator) < 0.6,
        log_alpha=_uniform(math.log(0.08), math.log(1.0), num_groups, generator),
        has_few=torch.rand(num_groups, generator=generator) < 0.35,
        size_sigma=float(_uniform(0.0, 0.7, 1, generator)),
        typical_size=float(_uniform(40, 90, 1, generator)),
    )


def draw_client(
    population: Population, client: int, rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Draw the data of one client.

    Args:
        population: The population.
        client: Number of the client.
        rows: Rows that are drawn, of which `size` are for training.
        generator: The source of randomness.

    Returns:
        Inputs `[rows, INPUTS]`, labels `[rows]` and the number of training rows.
    """
    group = int(population.group_of[client])
    shares = torch.full((CLASSES,), 1.0 / CLASSES)
    if population.is_skewed[group]:
        alpha = population.log_alpha[group].exp().expand(CLASSES)
        shares = _sample_gamma(alpha, generator).clamp(min=1e-6)
    label = torch.multinomial(shares, rows, True, generator=generator)
    mode = torch.randint(MODES, (rows,), generator=generator)
    inputs = population.centers[label, mode] + torch.randn(rows, INPUTS, generator=generator)
    view = VIEWS[population.views[group]]
    if view == "turned":
        inputs = inputs @ population.turns[client % 4]
    elif view == "scrambled":
        inputs = inputs[:, torch.randperm(INPUTS, generator=generator)]
        inputs = inputs * torch.where(torch.randn(INPUTS, generator=generator) > 0, 1.0, -1.0)
    elif view == "relabelled":
        label = torch.randperm(CLASSES, generator=generator)[label]
    log_size = population.size_sigma * float(torch.randn(1, generator=generator))
    size = population.typical_size * math.exp(log_size)
    if population.has_few[group]:
        size *= 0.25
    return inputs, label, min(max(round(size), 8), MAX_ROWS)


def draw_federations(count: int, clients: int, generator: torch.Generator) -> Federations:
    """Draw federations, each with a population of its own.

    Args:
        count: Number E of federations.
        clients: Number C of clients of each.
        generator: The source of randomness.

    Returns:
        Their data, and how each is trained.
    """
    max_val = MAX_ROWS // 4
    rows = MAX_ROWS + max_val + TEST_ROWS
    kinds: list[str] = []
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    sizes: list[int] = []
    for _ in range(count):
        population = draw_population(clients, generator)
        kinds.append(population.describe())
        for client in range(clients):
            client_inputs, client_labels, size = draw_client(population, client, rows, generator)
            inputs.append(client_inputs)
            labels.append(client_labels)
            sizes.append(size)
    x = torch.stack(inputs).reshape(count, clients, rows, INPUTS) / 2
    y = torch.stack(labels).reshape(count, clients, rows)
    size_of = torch.tensor(sizes).reshape(count, clients)
    val = slice(MAX_ROWS, MAX_ROWS + max_val)
    return Federations(
        x=x[:, :, :MAX_ROWS],
        y=y[:, :, :MAX_ROWS],
        size=size_of,
        val_x=x[:, :, val],
        val_y=y[:, :, val],
        val_size=(size_of // 4).clamp(min=2),
        test_x=x[:, :, -TEST_ROWS:],
        test_y=y[:, :, -TEST_ROWS:],
        lr=_uniform(math.log(0.3), math.log(1.2), count, generator).exp(),
        falls=torch.rand(count, generator=generator) < 0.7,
        epochs=torch.randint(1, 3, (count,), generator=generator),
        momentum=BASE_MOMENTUM * (torch.rand(count, generator=generator) < 0.5),
        kind=tuple(kinds),
    )


def repeat(data: Federations, replicas: int) -> Federations:
    """Return every federation several times, in the order 0, 0, 0, 0, 1, 1, ..."""
    repeated = {
        name: value.repeat_interleave(replicas, 0)
        for name, value in data._asdict().items()
        if isinstance(value, Tensor)
    }
    return data._replace(**repeated, kind=tuple(k for k in data.kind for _ in range(replicas)))


class Model(NamedTuple):
    """Models of clients `[E, C, ...]`, or global models `[E, 1, ...]`; the head is `w2`, `b2`."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


def outputs(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden units and logits for inputs `[E, C, n, INPUTS]`."""
    hidden = torch.relu(x @ model.w1 + model.b1[..., None, :])
    return hidden, hidden @ model.w2 + model.b2[..., None, :]


def sgd_step(model: Model, x: Tensor, y: Tensor, lr: Tensor) -> Model:
    """Take a step on the mean cross-entropy of mini-batches, with a rate `[E, C]` per client.

    Args:
        model: Models of E federations of C clients.
        x: Inputs of the mini-batches.
        y: Labels of the mini-batches.
        lr: Learning rates `[E, C]`.

    Returns:
        The models after the step.
    """
    hidden, logits = outputs(model, x)
    error = torch.softmax(logits, -1)
    error.scatter_add_(-1, y[..., None], torch.full_like(error[..., :1], -1.0))
    error = error / x.shape[-2]
    back = (error @ model.w2.transpose(-1, -2)) * (hidden > 0)
    step = lr[..., None]
    return Model(
        model.w1 - step[..., None] * (x.transpose(-1, -2) @ back),
        model.b1 - step * back.sum(-2),
        model.w2 - step[..., None] * (hidden.transpose(-1, -2) @ error),
        model.b2 - step * error.sum(-2),
    )


def accuracy(model: Model, x: Tensor, y: Tensor, size: Tensor) -> Tensor:
    """Return the accuracy `[E, C]` on the first `size` rows.

    Args:
        model: Models of E federations of C clients.
        x: Inputs, padded.
        y: Labels, padded.
        size: Rows of each client that count `[E, C]`.
    """
    is_right = outputs(model, x)[1].argmax(-1) == y
    counts = torch.arange(y.shape[-1]) < size[..., None]
    return (is_right & counts).sum(-1) / size


def train_clients(
    model: Model, data: Federations, lr: Tensor, draws: Tensor, steps: Tensor
) -> Model:
    """Train all clients for one round.

    Args:
        model: Their models.
        data: Their data.
        lr: Rates `[E]`.
        draws: Uniform numbers `[max steps, E, C, BATCH_ROWS]` that choose rows.
        steps: Steps of each client `[E, C]`.

    Returns:
        The trained models.
    """
    inputs = data.x.shape[-1]
    for step, draw in enumerate(draws):
        rows = (draw * data.size[..., None]).long()
        x = data.x.gather(2, rows[..., None].expand(*rows.shape, inputs))
        y = data.y.gather(2, rows)
        model = sgd_step(model, x, y, lr[:, None] * (step < steps))
    return model


def install(parts: Tensor, received: Model, own: Model) -> Model:
    """Return the models that clients start from, having installed parts `[E, C]`.

    Args:
        parts: The part that each client installs `[E, C]`.
        received: The server's models.
        own: The clients' own models.
    """
    takes = FOUR_PARTS.membership[parts]
    body = takes[..., 0, None]
    head = takes[..., 1, None]
    return Model(
        torch.where(body[..., None], received.w1, own.w1),
        torch.where(body, received.b1, own.b1),
        torch.where(head[..., None], received.w2, own.w2),
        torch.where(head, received.b2, own.b2),
    )


def aggregate(
    received: Model, velocity: Model, own: Model, data: Federations, ages: Tensor
) -> tuple[Model, Model]:
    """Return the next global models and their velocity: FedAvgM with the weights of `BlockSets`.

    Args:
        received: The global models.
        velocity: Their last step.
        own: The clients' uploads.
        data: Rows and momentum of the federations.
        ages: Rounds since each client installed backbone and head `[E, C, 2]`.
    """
    fresh = STALENESS_DECAY ** ages.float()
    weights = data.size[..., None] * fresh / fresh.max(1, keepdim=True).values
    weights = weights / weights.sum(1, keepdim=True)
    is_shared = (ages == 0).any(1)
    moves = (fresh.mean(1) / FULL_STEP_WEIGHT).clamp(max=1.0) * is_shared
    steps = []
    models = []
    for old, last, new, block in zip(received, velocity, own, (0, 0, 1, 1), strict=True):
        ones = [1] * (new.dim() - 2)
        mean = (weights[..., block].reshape(*weights.shape[:2], *ones) * new).sum(1, True)
        steps.append(data.momentum.reshape(-1, 1, *ones) * last + (mean - old))
        models.append(old + moves[:, block].reshape(-1, 1, *ones) * steps[-1])
    return Model(*models), Model(*steps)


def finetune(own: Model, data: Federations, draws: Tensor) -> Model:
    """Fine-tune all clients of the federations in which that pays on validation rows.

    As at the end of a run, models stay as they are unless the mean gain over clients exceeds two
    standard errors.

    Args:
        own: Models of the clients.
        data: Their data.
        draws: Uniform numbers `[max steps, E, C, BATCH_ROWS]` that choose rows.

    Returns:
        The models, fine-tuned or unchanged.
    """
    steps = (TUNING_EPOCHS * data.size / BATCH_ROWS).ceil().long()
    tuned = train_clients(own, data, TUNING_RATE * data.lr, draws, steps)
    before, after = (
        accuracy(model, data.val_x, data.val_y, data.val_size) for model in (own, tuned)
    )
    gain = after - before
    pays = gain.mean(1) > TUNING_MIN_ERRORS * gain.std(1) / gain.shape[1] ** 0.5

    def select(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(pays.reshape(-1, *[1] * (new.dim() - 1)), new, old)

    return Model(*(select(new, old) for new, old in zip(tuned, own, strict=True)))


class Episode(NamedTuple):
    """What happened in E federations.

    Attributes:
        personal: Test accuracy of each client's own model at the end `[E, C]`.
        tuned: The same after fine-tuning `[E, C]`.
        global_: Test accuracy of the global model on each client's rows `[E, C]`.
        features: What the policy observed at each decision `[D, E, C, F]`.
        actions: The parts that it chose `[D, E, C]`.
    """

    personal: Tensor
    tuned: Tensor
    global_: Tensor
    features: Tensor
    actions: Tensor


Choose = Callable[[Tensor, float], Tensor]
"""Maps features `[E, C, F]` and the share of the run that is over to parts `[E, C]`."""


class Memory(NamedTuple):
    """What the server remembers of E federations.

    Attributes:
        parts: Part that each client holds `[E, C]`.
        installed_round: When it last installed backbone and head `[E, C, 2]`.
        has_left: Whether it has left the gate `[E, C]`.
        alignment: Of its first updates with those of the others `[E, C]`.
        accuracy: Scores of the last probe `[E, C, P]`; None before the first.
        previous: Those of the probe before, or the same.
        smoothed: Those over probes.
        score_sum: Their sum over probes.
        num_probes: Number of probes.
    """

    parts: Tensor
    installed_round: Tensor
    has_left: Tensor
    alignment: Tensor
    accuracy: Tensor | None = None
    previous: Tensor | None = None
    smoothed: Tensor | None = None
    score_sum: Tensor | None = None
    num_probes: int = 0

    @classmethod
    def at_start(cls, count: int, clients: int) -> Memory:
        """Return the memory of federations in which everybody takes `full`."""
        parts = torch.zeros(count, clients, dtype=torch.int64)
        return cls(
            parts,
            torch.zeros(count, clients, 2, dtype=torch.int64),
            torch.zeros_like(parts, dtype=torch.bool),
            torch.zeros_like(parts, dtype=DTYPE),
        )

    def after_probe(self, received: Model, own: Model, data: Federations) -> Memory:
        """Return the memory after all clients scored all parts on their validation rows.

        Args:
            received: The server's models.
            own: The clients' own models.
            data: The federations.
        """
        scores = [
            accuracy(
                install(torch.full_like(self.parts, part), received, own),
                data.val_x,
                data.val_y,
                data.val_size,
            )
            for part in range(len(FOUR_PARTS))
        ]
        probe = torch.stack(scores, -1)
        if self.accuracy is None or self.smoothed is None or self.score_sum is None:
            return self._replace(
                accuracy=probe, previous=probe, smoothed=probe, score_sum=probe, num_probes=1
            )
        return self._replace(
            accuracy=probe,
            previous=self.accuracy,
            smoothed=torch.lerp(self.smoothed, probe, SMOOTHING),
            score_sum=self.score_sum + probe,
            num_probes=self.num_probes + 1,
        )

    def observe(self, data: Federations, over: float) -> tuple[Tensor, Memory]:
        """Let the gate decide; return the clients' features `[E, C, F]` and the memory."""
        assert self.accuracy is not None
        assert self.previous is not None
        assert self.smoothed is not None
        assert self.score_sum is not None
        known = torch.ones_like(self.has_left)
        advantages = shrunk_advantages(self.smoothed.to(DTYPE), known, data.val_size)
        gain = self.smoothed[..., BODY_PART] - self.smoothed[..., NONE_PART]
        mean_scores = (self.score_sum / self.num_probes).to(DTYPE)
        head_gain = certain_head_gain(mean_scores, known, advantages)
        lack = lack_of_alignment(self.alignment, known)
        evidence = GateEvidence(advantages.center + advantages.deviation, gain, lack, head_gain)
        gate_part, has_left = gate_decisions(evidence, self.has_left, over, GATE_CHOICES)
        seen = Observation(
            smoothed=self.smoothed,
            accuracy=self.accuracy,
            previous=self.previous,
            is_known=known,
            installs=FOUR_PARTS.membership[self.parts],
            num_rows=data.size,
            num_val_rows=data.val_size,
            time_left=torch.full((len(known),), 1.0 - over),
            gate_part=gate_part,
            has_left=has_left,
            alignment=self.alignment,
        )
        return client_features(seen), self._replace(has_left=has_left)


def _lr_of_round(data: Federations, round_: int, rounds: int) -> Tensor:
    """Return the learning rate of each federation, which falls as a cosine to 1 % in some."""
    fall = 0.5 * (1 + math.cos(math.pi * (round_ - 1) / max(1, rounds - 1)))
    return data.lr * torch.where(data.falls, 0.01 + 0.99 * fall, 1.0)


def play(
    data: Federations, rounds: int, replicas: int, choose: Choose, generator: torch.Generator
) -> Episode:
    """Run all federations to the end; replicas have the same start and mini-batches.

    Args:
        data: The federations, each `replicas` times in a row.
        rounds: Rounds of an episode.
        replicas: Copies of each federation, which differ in their actions only.
        choose: The policy: parts from features.
        generator: Draws starts and mini-batches.

    Returns:
        Features, actions and rewards of the episode.
    """
    count, clients = data.size.shape
    distinct = count // replicas

    def same(*shape: int) -> Tensor:
        return torch.rand(distinct, *shape, generator=generator).repeat_interleave(replicas, 0)

    def start(*shape: int) -> Tensor:
        return (2 * same(1, *shape) - 1) / math.sqrt(shape[0])

    zeros = torch.zeros(count, 1, HIDDEN)
    received = Model(
        start(INPUTS, HIDDEN), zeros, start(HIDDEN, CLASSES), zeros[..., :CLASSES].clone()
    )
    own = Model(*(value.expand(-1, clients, *value.shape[2:]).contiguous() for value in received))
    velocity = Model(*(torch.zeros_like(value) for value in received))
    memory = Memory.at_start(count, clients)
    steps = (data.epochs[:, None] * data.size / BATCH_ROWS).ceil().long()
    hold = hold_rounds(rounds)
    aligned = min(hold, ALIGNED_ROUNDS)
    observed = []
    actions = []
    for round_ in range(1, rounds + 1):
        if memory.accuracy is not None and (round_ - 1) % hold == 0:
            over = (round_ - 1) / rounds
            features, memory = memory.observe(data, over)
            memory = memory._replace(parts=choose(features, over))
            observed.append(features)
            actions.append(memory.parts)
        if round_ % hold == 0 and round_ < rounds:
            memory = memory.after_probe(received, own, data)
        lr = _lr_of_round(data, round_, rounds)
        draws = same(int(steps.max()), clients, BATCH_ROWS).transpose(0, 1)
        own = train_clients(install(memory.parts, received, own), data, lr, draws, steps)
        if round_ <= aligned:
            pairs = zip(own[:2], received[:2], strict=True)
            alignment = update_alignment([(new - old).flatten(2) for new, old in pairs])
            memory = memory._replace(alignment=memory.alignment + alignment / aligned)
        takes = FOUR_PARTS.membership[memory.parts]
        installed_round = torch.where(takes, round_, memory.installed_round)
        memory = memory._replace(installed_round=installed_round)
        received, velocity = aggregate(received, velocity, own, data, round_ - installed_round)
    draws = same(TUNING_EPOCHS * MAX_ROWS // BATCH_ROWS, clients, BATCH_ROWS).transpose(0, 1)
    whole = install(torch.zeros_like(memory.parts), received, own)
    test = (data.test_x, data.test_y, torch.full_like(data.size, TEST_ROWS))
    return Episode(
        accuracy(own, *test),
        accuracy(finetune(own, data, draws), *test),
        accuracy(whole, *test),
        torch.stack(observed),
        torch.stack(actions),
    )
