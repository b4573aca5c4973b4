"""The public names of the lab, which replays recorded conversations under several policies and measures each policy."""

from holdfast.apps.lab.metrics.cost import PrefixStability
from holdfast.apps.lab.metrics.validity import BudgetAdherence, RequestValidity
from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.replay import Replayer
from holdfast.apps.lab.runner import LabRun, PolicyResult, ReplayJob, make_jobs, run_jobs
from holdfast.apps.lab.simulation import SimulatedSession

__all__ = [
    "BudgetAdherence",
    "LabRun",
    "PolicyResult",
    "PrefixStability",
    "Recording",
    "ReplayJob",
    "Replayer",
    "RequestValidity",
    "SimulatedSession",
    "make_jobs",
    "run_jobs",
]
