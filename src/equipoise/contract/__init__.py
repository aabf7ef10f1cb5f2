"""The words of the design, and nothing else.

One federated round is six decisions: who takes part (0), how a client trains (1), what it uploads (2), how the server
forms the aggregate (3), which part each client gets back and how it installs it (4), which model is the personal one
(5). A :class:`Method` is a policy at these points; its defaults are FedAvg.

Client code is written for ONE client: executors map it over many. Server code sees stacks ``[K, ...]`` of the clients
that really replied. State goes in and comes out of every hook; nothing is kept anywhere else.
"""

from equipoise.contract.client import Client, DeviceProfile
from equipoise.contract.method import Method, equal_weights, merge_sent_blocks, weighted_mean
from equipoise.contract.ranges import ValueRange
from equipoise.contract.selection import RoundFeedback, Pool, SelectionPolicy
from equipoise.contract.server import Server
from equipoise.contract.supervised import SupervisedTask, require_supervised
from equipoise.contract.task import Task
from equipoise.contract.words import (
    Blocks,
    ServerMessage,
    LocalTrainRequest,
    ClientState,
    Loss,
    ProximalTerm,
    ClientResult,
    Scores,
    LocalHParams,
    TrainingConfig,
    ClientUpdate,
    RngContext,
)
from equipoise.contract.wrap import MethodWrapper, DelegatingMethod
from equipoise.core.options import Options, option
from equipoise.core.schedules import Scheduled, Schedule
from equipoise.core.trees import State, Params

__all__ = [
    "MethodWrapper",
    "Blocks",
    "Client",
    "ServerMessage",
    "LocalTrainRequest",
    "RoundFeedback",
    "ClientState",
    "Loss",
    "Method",
    "Options",
    "Scheduled",
    "Pool",
    "DeviceProfile",
    "ProximalTerm",
    "ValueRange",
    "ClientResult",
    "Schedule",
    "Scores",
    "SelectionPolicy",
    "Server",
    "State",
    "SupervisedTask",
    "Task",
    "LocalHParams",
    "TrainingConfig",
    "Params",
    "ClientUpdate",
    "RngContext",
    "DelegatingMethod",
    "equal_weights",
    "option",
    "require_supervised",
    "merge_sent_blocks",
    "weighted_mean",
]
