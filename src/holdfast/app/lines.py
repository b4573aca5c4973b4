"""At how many tokens a policy does something about a conversation with a model."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.app.build import budget_from, policy_from
from holdfast.app.models import bare_name, model_of
from holdfast.app.settings import Settings
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.checkpoint import FoldToCheckpoint
from holdfast.core.planning.rules.deep import FoldDeep
from holdfast.core.planning.rules.everything import FoldEverything
from holdfast.core.planning.rules.turns import HalveTurns
from holdfast.core.planning.rules.window import FoldMiddle
from holdfast.core.planning.situation import MARGIN_ESTIMATED
from holdfast.core.planning.triggers import mid_run_fraction
from holdfast.counters.models import budget_for
from holdfast.counters.vocabularies import family_of


@dataclass(frozen=True, slots=True)
class Line:
    """Where something happens."""

    what: str
    at: int
    unit: str = "tokens"


def lines_for(settings: Settings, model: str) -> list[Line]:
    """Return where the policy acts with a model, nothing but messages being sent, the earliest first."""
    policy, bare = policy_from(settings), bare_name(model)
    budget = budget_from(settings, model) or budget_for(bare)
    known = model_of(settings, model)
    margin = 0.0 if family_of(bare).is_own else MARGIN_ESTIMATED
    usable = int(budget.tokens * (1 - margin))
    # Who names a budget, a person or a provider, means that as the window that is to be filled.
    is_told = budget.source in {"user", "provider"}
    window = budget.tokens if is_told or known is None else known.max_input_tokens
    if known is None and not is_told:
        window = policy.unknown_window
    return list(_lines(policy, window, usable))


def _lines(policy: Policy, window: int, usable: int) -> Iterator[Line]:
    match policy.fold:
        case FoldDeep(soft_share=soft, hard_share=hard):
            room = usable - REPLY_OVERHEAD
            yield Line("summary begun", int(soft * room))
            yield Line("folded", int(hard * room))
        case FoldToCheckpoint(lines=lines):
            yield Line("summary begun", int(lines.background * window))
            yield Line("waited for", int(lines.exhausted * window))
        case FoldEverything(fraction=fraction):
            yield Line("compressed", int(fraction * window))
            yield Line("within a run", int(mid_run_fraction(window) * window))
        case HalveTurns(max_turns=turns, max_tokens=tokens):
            yield Line("halved over", turns, "turns")
            yield Line("halved over", min(tokens, usable))
        case FoldMiddle(max_messages=messages) if messages:
            yield Line("middle folded over", messages, "messages")
        case _:
            pass
    if policy.truncator is not None:
        yield Line("truncated", int(policy.truncator.target_share * window))
