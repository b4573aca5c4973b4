"""The public names of compaction: its options, its results, and the rules that make up a `Policy`.

Pass `CompactionOptions` to `Session.open` to choose the summarizers, the approval and the observers of a session.
"""

from holdfast.core.history.events import CompactionCompleted, CompactionStarted, CompactionTrigger
from holdfast.core.planning.change_receipt import ChangeReceipt
from holdfast.core.planning.context_report import ContextReport, CostForecast
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.request_stages import RequestProcessor, RequestProcessors
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction
from holdfast.core.planning.rules.cowagent import CowAgentCompaction
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.core.planning.rules.inkeep import InkeepCompaction
from holdfast.core.planning.situation import Prices
from holdfast.models.base import ModelReply, Summarizer, SummaryPrompt
from holdfast.models.retry import RetryLimits
from holdfast.session.compaction.checkpoints import Checkpoint, Checkpoints
from holdfast.session.compaction.compactor import Approval, CompactionOptions, SummaryDraft
from holdfast.session.compaction.hooks import Hook, HookCall, HookCommand, Hooks
from holdfast.session.compaction.telemetry import Telemetry

__all__ = [
    "PRESETS",
    "Approval",
    "ChangeReceipt",
    "Checkpoint",
    "Checkpoints",
    "CoCliCompaction",
    "CompactionCompleted",
    "CompactionOptions",
    "CompactionStarted",
    "CompactionTrigger",
    "ContextReport",
    "CopilotCompaction",
    "CostForecast",
    "CowAgentCompaction",
    "DefaultCompaction",
    "Hook",
    "HookCall",
    "HookCommand",
    "Hooks",
    "InkeepCompaction",
    "ModelReply",
    "Prices",
    "RequestProcessor",
    "RequestProcessors",
    "RetryLimits",
    "Summarizer",
    "SummaryDraft",
    "SummaryPrompt",
    "Telemetry",
]
