"""Four systems' ways with a long conversation, and our own."""

from collections.abc import Mapping

from holdfast.core.planning.policy import FitSettings, Policy
from holdfast.core.planning.rules.checkpoint import CopilotCompaction
from holdfast.core.planning.rules.deep import DefaultCompaction
from holdfast.core.planning.rules.everything import FixedLimits, InkeepCompaction
from holdfast.core.planning.rules.offload import Offload
from holdfast.core.planning.rules.outputs import KeepEnds, KeepHeads
from holdfast.core.planning.rules.truncator import BasicTruncator
from holdfast.core.planning.rules.turns import CowAgentCompaction, Emergency
from holdfast.core.planning.rules.window import CoCliCompaction
from holdfast.errors import SettingsError

DEFAULT = Policy(
    name="default",
    fold=DefaultCompaction(),
    offload=Offload(),
    emergency=Emergency(first=3),
    floor=FitSettings(),
    remembers=True,
)
CO_CLI = Policy(
    name="co-cli",
    outputs=KeepHeads(max_chars=2_000, protect_last=2),
    fold=CoCliCompaction(max_messages=40),
    apply="inline",
    on_failure="marker",
    # A fresh agent with a prompt of its own and no tools writes: no request of the conversation begins so.
    reuses_prefix=False,
    max_steps=None,
    restore="full",
)
INKEEP = Policy(
    name="inkeep",
    fold=InkeepCompaction(fraction=0.5),
    limits=FixedLimits(max_messages=50, max_tokens=8_000, max_retrieved=10_000),
    apply="inline",
    on_failure="limits",
    author="summariser",
    reuses_prefix=False,
    unknown_window=120_000,
    max_steps=None,
    restore="since_summary",
)
COPILOT = Policy(
    name="copilot",
    fold=CopilotCompaction(),
    truncator=BasicTruncator(target_share=0.95),
    apply="background",
    on_failure="keep",
    author="session",
    unknown_window=128_000,
    max_steps=None,
    restore="replay",
    needs_context=True,
)
COWAGENT = Policy(
    name="cowagent",
    outputs=KeepEnds(max_chars=20_000),
    fold=CowAgentCompaction(max_turns=20, max_tokens=50_000),
    emergency=Emergency(max_chars=10_000, max_turns=5),
    apply="deferred",
    on_failure="trim",
    author="session",
    reuses_prefix=False,
    unknown_window=50_000,
    max_steps=15,
    restore="recent_text",
    remembers=True,
    retention_days=30,
)
PRESETS: Mapping[str, Policy] = {policy.name: policy for policy in (DEFAULT, CO_CLI, INKEEP, COPILOT, COWAGENT)}


def policy_named(policy: str | Policy) -> Policy:
    """Return a policy by its name, or the policy itself."""
    if isinstance(policy, Policy):
        return policy
    name = policy
    if not isinstance(name, str) or name not in PRESETS:
        raise SettingsError("policy", f"{name!r} is not known; choose one of: {', '.join(PRESETS)}, or pass a Policy")
    return PRESETS[name]
