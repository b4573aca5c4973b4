"""The public names of compaction: its options, its results, and the rules that make up a `Policy`.

A rule of your own is a `CompactionRule`: it gets a `PlanInput` and returns a `Plan` with a `CompactSpan`. Pass
`CompactionOptions` to `Session.open` to choose the summarizers, the approval and the observers of a session.
"""

from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import CompactionCompleted, CompactionStarted, CompactionTrigger, Summary, Usage
from holdfast.core.planning.change_receipt import ChangeReceipt
from holdfast.core.planning.context_report import ContextReport, CostForecast
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.request_stages import RequestProcessor, RequestProcessors
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction
from holdfast.core.planning.rules.cowagent import CowAgentCompaction
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.core.planning.rules.inkeep import InkeepCompaction
from holdfast.core.planning.rules.rule import CompactionRule, PolicyThreshold
from holdfast.core.planning.situation import Prices, Situation
from holdfast.core.planning.steps import CompactSpan, Plan, PlanInput, compact_all_step, without_open_exchange
from holdfast.models.base import ModelReply, Summarizer, SummaryPrompt
from holdfast.models.retry import RetryLimits
from holdfast.session.compaction.checkpoints import Checkpoint, Checkpoints
from holdfast.session.compaction.compactor import Approval, CompactionOptions, CompactionQueue, SummaryDraft
from holdfast.session.compaction.hooks import Hook, HookCall, HookCommand, Hooks
from holdfast.session.compaction.telemetry import Telemetry
from holdfast.wire.openai_chat import join_same_roles

__all__ = [
    "PRESETS",
    "Approval",
    "ChangeReceipt",
    "Checkpoint",
    "Checkpoints",
    "CoCliCompaction",
    "CompactSpan",
    "CompactionCompleted",
    "CompactionOptions",
    "CompactionQueue",
    "CompactionRule",
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
    "Plan",
    "PlanInput",
    "PolicyThreshold",
    "Prices",
    "RequestProcessor",
    "RequestProcessors",
    "RetryLimits",
    "Situation",
    "Span",
    "Summarizer",
    "Summary",
    "SummaryDraft",
    "SummaryPrompt",
    "Telemetry",
    "Usage",
    "compact_all_step",
    "join_same_roles",
    "without_open_exchange",
]
