"""The words of the design, and nothing else.

One federated round is six decisions: who takes part (0), how a client trains (1), what it uploads (2), how the server
forms the aggregate (3), which part each client gets back and how it installs it (4), which model is the personal one
(5). A :class:`Method` is a policy at these points; its defaults are FedAvg.

Client code is written for ONE client: executors map it over many. Server code sees stacks ``[K, ...]`` of the clients
that really replied. State goes in and comes out of every hook; nothing is kept anywhere else.
"""

from equipoise.config.schedules import Schedule, Scheduled
from equipoise.config.schema import Options, option
from equipoise.core.client import Client, DeviceProfile
from equipoise.core.client_selection import Pool, RoundFeedback, SelectionPolicy
from equipoise.core.messages import (
    Blocks,
    ClientResult,
    ClientState,
    ClientUpdate,
    LocalHParams,
    LocalTrainRequest,
    Loss,
    ProximalTerm,
    RngContext,
    Scores,
    ServerMessage,
    TrainingConfig,
)
from equipoise.core.method import Method, equal_weights, merge_sent_blocks, weighted_mean
from equipoise.core.report_validation import ValueRange
from equipoise.core.server import Server
from equipoise.core.task import SupervisedTask, Task, require_supervised
from equipoise.core.wrapper import DelegatingMethod, MethodWrapper
from equipoise.utils.pytree import Params, State

__all__ = [
    "Blocks",
    "Client",
    "ClientResult",
    "ClientState",
    "ClientUpdate",
    "DelegatingMethod",
    "DeviceProfile",
    "LocalHParams",
    "LocalTrainRequest",
    "Loss",
    "Method",
    "MethodWrapper",
    "Options",
    "Params",
    "Pool",
    "ProximalTerm",
    "RngContext",
    "RoundFeedback",
    "Schedule",
    "Scheduled",
    "Scores",
    "SelectionPolicy",
    "Server",
    "ServerMessage",
    "State",
    "SupervisedTask",
    "Task",
    "TrainingConfig",
    "ValueRange",
    "equal_weights",
    "merge_sent_blocks",
    "option",
    "require_supervised",
    "weighted_mean",
]
