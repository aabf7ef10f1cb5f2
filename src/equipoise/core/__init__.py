"""Base classes and message types shared by methods, tasks and executors.

Read `method.py` first: it names the hooks of a round in their order.
"""

from equipoise.config.schema import Options, Schedule, Scheduled, option
from equipoise.core.client import Client, DeviceProfile
from equipoise.core.client_selection import Pool, RoundFeedback, SelectionPolicy
from equipoise.core.messages import (
    Blocks,
    ClientResult,
    ClientState,
    ClientUpdate,
    LinearLoss,
    LinearStack,
    LocalHParams,
    LocalTrainRequest,
    Loss,
    ProximalTerm,
    RngContext,
    Scores,
    ServerMessage,
    TrainingConfig,
)
from equipoise.core.method import (
    Capabilities,
    Method,
    equal_weights,
    merge_sent_blocks,
    weighted_mean,
)
from equipoise.core.report_validation import ValueRange
from equipoise.core.server import Server
from equipoise.core.task import (
    ExperimentTask,
    Preparation,
    SupervisedTask,
    Task,
    TaskInfo,
    require_supervised,
)
from equipoise.core.wrapper import DelegatingMethod, MethodWrapper
from equipoise.utils.pytree import Params, State

__all__ = [
    "Blocks",
    "Capabilities",
    "Client",
    "ClientResult",
    "ClientState",
    "ClientUpdate",
    "DelegatingMethod",
    "DeviceProfile",
    "ExperimentTask",
    "LinearLoss",
    "LinearStack",
    "LocalHParams",
    "LocalTrainRequest",
    "Loss",
    "Method",
    "MethodWrapper",
    "Options",
    "Params",
    "Pool",
    "Preparation",
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
    "TaskInfo",
    "TrainingConfig",
    "ValueRange",
    "equal_weights",
    "merge_sent_blocks",
    "option",
    "require_supervised",
    "weighted_mean",
]
