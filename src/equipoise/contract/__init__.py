"""The words of the design, and nothing else.

One federated round is six decisions: who takes part (0), how a client trains (1), what it uploads (2), how the server
forms the aggregate (3), which part each client gets back and how it installs it (4), which model is the personal one
(5). A :class:`Method` is a policy at these points; its defaults are FedAvg.

Client code is written for ONE client: executors map it over many. Server code sees stacks ``[K, ...]`` of the clients
that really replied. State goes in and comes out of every hook; nothing is kept anywhere else.
"""

from equipoise.contract.client import Client, Profile
from equipoise.contract.method import Method, equal_weights, take_sent, weighted_mean
from equipoise.contract.ranges import Range
from equipoise.contract.selection import Heard, Pool, Selection
from equipoise.contract.server import Server
from equipoise.contract.supervised import Supervised, supervised
from equipoise.contract.task import Task
from equipoise.contract.words import (
    Blocks,
    Down,
    Fit,
    Held,
    Loss,
    Pull,
    Reply,
    Scores,
    Train,
    Training,
    Up,
    When,
)
from equipoise.contract.wrap import Around, Wrapper
from equipoise.core.options import Options, option
from equipoise.core.schedules import OverRounds, Schedule
from equipoise.core.trees import State, Tree

__all__ = [
    "Around",
    "Blocks",
    "Client",
    "Down",
    "Fit",
    "Heard",
    "Held",
    "Loss",
    "Method",
    "Options",
    "OverRounds",
    "Pool",
    "Profile",
    "Pull",
    "Range",
    "Reply",
    "Schedule",
    "Scores",
    "Selection",
    "Server",
    "State",
    "Supervised",
    "Task",
    "Train",
    "Training",
    "Tree",
    "Up",
    "When",
    "Wrapper",
    "equal_weights",
    "option",
    "supervised",
    "take_sent",
    "weighted_mean",
]
