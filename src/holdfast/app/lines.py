"""At how many tokens a policy does something about a conversation with a model."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.app.build import budget_from, policy_from
from holdfast.app.models import bare_model_name, configured_model
from holdfast.app.settings import Settings
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.checkpoint import CopilotCompaction
from holdfast.core.planning.rules.deep import DefaultCompaction
from holdfast.core.planning.rules.everything import InkeepCompaction
from holdfast.core.planning.rules.turns import CowAgentCompaction
from holdfast.core.planning.rules.window import CoCliCompaction
from holdfast.core.planning.situation import MARGIN_ESTIMATED
from holdfast.core.planning.triggers import mid_run_fraction
from holdfast.counters.models import budget_for
from holdfast.counters.vocabularies import model_family


@dataclass(frozen=True, slots=True)
class PolicyThreshold:
    """Where something happens."""

    what: str
    at: int
    unit: str = "tokens"


def policy_thresholds(settings: Settings, model: str) -> list[PolicyThreshold]:
    """Return where the policy acts with a model, nothing but messages being sent, the earliest first."""
    policy, bare = policy_from(settings), bare_model_name(model)
    budget = budget_from(settings, model) or budget_for(bare)
    known = configured_model(settings, model)
    margin = 0.0 if model_family(bare).has_own_vocabulary else MARGIN_ESTIMATED
    usable = int(budget.tokens * (1 - margin))
    # Who names a budget, a person or a provider, means that as the window that is to be filled.
    is_told = budget.source in {"user", "provider"}
    window = budget.tokens if is_told or known is None else known.max_input_tokens
    if known is None and not is_told:
        window = policy.unknown_window
    return list(_thresholds(policy, window, usable))


def _thresholds(policy: Policy, window: int, usable: int) -> Iterator[PolicyThreshold]:
    match policy.fold:
        case DefaultCompaction(soft_share=soft, hard_share=hard):
            room = usable - REPLY_OVERHEAD
            yield PolicyThreshold("summary begun", int(soft * room))
            yield PolicyThreshold("folded", int(hard * room))
        case CopilotCompaction(lines=lines):
            yield PolicyThreshold("summary begun", int(lines.background * window))
            yield PolicyThreshold("waited for", int(lines.exhausted * window))
        case InkeepCompaction(fraction=fraction):
            yield PolicyThreshold("compressed", int(fraction * window))
            yield PolicyThreshold("within a run", int(mid_run_fraction(window) * window))
        case CowAgentCompaction(max_turns=turns, max_tokens=tokens):
            yield PolicyThreshold("halved over", turns, "turns")
            yield PolicyThreshold("halved over", min(tokens, usable))
        case CoCliCompaction(max_messages=messages) if messages:
            yield PolicyThreshold("middle folded over", messages, "messages")
        case _:
            pass
    if policy.truncator is not None:
        yield PolicyThreshold("truncated", int(policy.truncator.target_share * window))
