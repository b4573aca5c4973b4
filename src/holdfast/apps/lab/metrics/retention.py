"""How much needed content is in a request: M1 demand retention and M13 instruction retention.

For recordings with questions also M2 evidence retention and M3 recoverable answers.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.apps.lab.identifiers import extract_identifiers, extract_rules
from holdfast.apps.lab.recordings import Probe, Recording
from holdfast.apps.lab.replay import ObservedRequest
from holdfast.apps.lab.simulation import LAB_FORMAT, full_message_text
from holdfast.core.ledger.identifiers import argument_text
from holdfast.testing.chat import assistant_message, user_message
from holdfast.wire.formats import format_named

FAR_DEMAND_MESSAGES = 20
"""A demand is far if its identifier last occurred more than this many messages ago."""
AGE_BUCKETS = (20, 50, 100, 200, 500)
"""The ages by which retention is split."""
RecallFunction = Callable[[str], Awaitable[str]]


class _Shares:
    """Counts by name: how many of how many were found."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, name: str, found: int, total: int = 1) -> None:
        before = self.counts.get(name, (0, 0))
        self.counts[name] = before[0] + found, before[1] + total

    def shares(self) -> dict[str, float]:
        return {name: found / total for name, (found, total) in self.counts.items() if total}


@dataclass(slots=True)
class DemandRetention:
    """M1: the share in view of the identifiers in a call's arguments that last occurred more than 20 messages before.

    `far` is the share that is verbatim in the request. `far_recall` is the share in the request or in one recall of
    1,000 tokens whose query is the last text of the conversation. `first` and `first_recall` are the same for the first
    far use of each identifier. `by_age` is the share in view by the distance to the last occurrence, in messages.
    """

    recall: RecallFunction | None = None
    _shares: _Shares = field(default_factory=_Shares)
    _last_seen: dict[str, int] = field(default_factory=dict[str, int])
    _indexed: int = 0
    _used: set[str] = field(default_factory=set[str])
    _last_text: str = ""

    async def observe(self, observed: ObservedRequest) -> None:
        self._index_messages(observed)
        message = format_named(LAB_FORMAT).decode(observed.recording.messages[observed.index], observed.index)
        names = {name for call in message.calls for name in extract_identifiers(argument_text(call.arguments))}
        ages = {name: observed.index - self._last_seen[name] for name in names if name in self._last_seen}
        far = {name: age for name, age in ages.items() if age > FAR_DEMAND_MESSAGES}
        lost = {name for name in far if name not in observed.text}
        answer = await self.recall(self._last_text) if self.recall and lost and self._last_text else ""
        for name, age in sorted(far.items()):
            is_found, is_reached = name not in lost, name not in lost or name in answer
            self._shares.add("far", is_found)
            self._shares.add("far_recall", is_reached)
            self._shares.add(f"by_age.{max(at for at in AGE_BUCKETS if age >= at)}", is_found)
            if name not in self._used:
                self._used.add(name)
                self._shares.add("first", is_found)
                self._shares.add("first_recall", is_reached)

    def _index_messages(self, observed: ObservedRequest) -> None:
        for position in range(self._indexed, observed.index):
            native = observed.recording.messages[position]
            self._last_seen |= dict.fromkeys(extract_identifiers(full_message_text(native)), position)
            text = format_named(LAB_FORMAT).decode(native, position).text
            self._last_text = text if text.strip() else self._last_text
        self._indexed = observed.index

    async def figures(self) -> Mapping[str, float]:
        """Return the shares; none if nothing was demanded."""
        shares = {f"M1.{name}": share for name, share in self._shares.shares().items()}
        if self.recall is None:
            shares = {name: share for name, share in shares.items() if not name.endswith("_recall")}
        return {**shares, "M1.demands": self._shares.counts["far"][1]} if shares else {}


@dataclass(slots=True)
class InstructionRetention:
    """M13: the share of lasting instructions that are verbatim in the request, on average over all requests.

    `system` is the share of system text, the first prompt and the newest prompt; `rules` is that of the user's
    sentences that say what to do always or never; `verbatim` is that of both together. `users` is the share of all the
    user's messages.
    """

    _shares: _Shares = field(default_factory=_Shares)
    _instructions: list[str] = field(default_factory=list[str])
    _rules: list[str] = field(default_factory=list[str])
    _prompts: list[str] = field(default_factory=list[str])
    _indexed: int = 0

    async def observe(self, observed: ObservedRequest) -> None:
        """Observe one request."""
        for native in observed.request.messages[self._indexed :]:
            text = full_message_text(native).strip()
            if native["role"] == "system" and text:
                self._instructions.append(text)
            elif native["role"] == "user" and text:
                self._instructions += [text] if not self._prompts else []
                self._prompts.append(text)
                self._rules += extract_rules(text)
        self._indexed = len(observed.request.messages)
        system = {*self._instructions, *self._prompts[-1:]}
        by_name: dict[str, Collection[str]] = {
            "system": system,
            "rules": {*self._rules} - system,
            "verbatim": {*self._rules} | system,
            "users": self._prompts,
        }
        for name, texts in by_name.items():
            self._shares.add(name, sum(text in observed.text for text in texts), len(texts))

    async def figures(self) -> Mapping[str, float]:
        return {f"M13.{name}": share for name, share in self._shares.shares().items()}


MIN_ANSWER_CHARS = 2


@dataclass(slots=True)
class EvidenceRetention:
    """M2: the share of questions for which every needed message is verbatim in the last request.

    `questions` is that share, `hard` that of the questions that need more than one message, and `turns` the share of
    the messages themselves. M3: the share in the request of the answers that are verbatim in the conversation. A name
    that ends in `_recall` counts the request and one recall of 1,000 tokens whose query is the question.
    """

    recall: RecallFunction | None = None
    _shares: _Shares = field(default_factory=_Shares)
    _last: ObservedRequest | None = None

    async def observe(self, observed: ObservedRequest) -> None:
        """Remember the request, because only the last one counts."""
        self._last = observed

    async def figures(self) -> Mapping[str, float]:
        last = self._last
        if last is None:
            return {}
        texts = [full_message_text(native) for native in last.recording.messages[: last.index]]
        whole = "\n".join(texts)
        for probe in last.recording.probes:
            views = [last.text, await self.recall(probe.question)] if self.recall else [last.text]
            self._check(probe, texts, whole, views)
        suffix = "_recall" if self.recall else ""
        return {f"{name}{suffix}": share for name, share in self._shares.shares().items()}

    def _check(self, probe: Probe, texts: Sequence[str], whole: str, views: Sequence[str]) -> None:
        found = [any(texts[index] in view for view in views) for index in probe.evidence]
        self._shares.add("M2.turns", sum(found), len(found))
        self._shares.add("M2.questions", all(found))
        if len(found) > 1:
            self._shares.add("M2.hard", all(found))
        if len(probe.answer) >= MIN_ANSWER_CHARS and probe.answer in whole:
            self._shares.add("M3.answers", any(probe.answer in view for view in views))


def with_final_question(recording: Recording) -> Recording:
    """Return a recording with a question at its end, so that there is a last request."""
    asked = [user_message("?"), assistant_message("…")]
    unknown: list[None] = [None, None]
    return replace(
        recording,
        messages=[*recording.messages, *asked],
        times=[*recording.times, *unknown],
        usage=[*recording.usage, *unknown],
    )
