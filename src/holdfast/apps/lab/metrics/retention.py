"""M1 demand retention and M13 instruction survival: what of what is needed stands in the request.

M2 evidence retention and M3 recoverable answers, for recordings that come with questions.
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
"""A demand is far when what it is for was last seen more than so many messages ago."""
AGE_BUCKETS = (20, 50, 100, 200, 500)
"""Where retention by age is told apart."""
RecallFunction = Callable[[str], Awaitable[str]]


@dataclass(slots=True)
class DemandRetention:
    """M1: of the identifiers in a call's arguments that were last seen more than 20 messages before, those in view.

    `far` is the share that stands verbatim in the request, `far_recall` that in the request or in one recall of 1,000
    tokens whose query is the last text that anybody said. `first` and `first_recall` are the same for the first far use
    of each identifier; `by_age` is the share in view by how long ago it was seen.
    """

    recall: RecallFunction | None = None
    counts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By name: how many were met, and of how many."""
    _last_seen: dict[str, int] = field(default_factory=dict[str, int])
    _known: int = 0
    _used: set[str] = field(default_factory=set[str])
    _said: str = ""

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request: what the answer to it demands."""
        self._index_messages(observed)
        message = format_named(LAB_FORMAT).decode(observed.recording.messages[observed.index], observed.index)
        names = {name for call in message.calls for name in extract_identifiers(argument_text(call.arguments))}
        ages = {name: observed.index - self._last_seen[name] for name in names if name in self._last_seen}
        far = {name: age for name, age in ages.items() if age > FAR_DEMAND_MESSAGES}
        lost = {name for name in far if name not in observed.text}
        answer = await self.recall(self._said) if self.recall and lost and self._said else ""
        for name, age in sorted(far.items()):
            is_reached = name not in lost or name in answer
            self._add("far", is_met=name not in lost)
            self._add("far_recall", is_met=is_reached)
            self._add(f"by_age.{max(at for at in AGE_BUCKETS if age >= at)}", is_met=name not in lost)
            if name not in self._used:
                self._used.add(name)
                self._add("first", is_met=name not in lost)
                self._add("first_recall", is_met=is_reached)

    def _index_messages(self, observed: ObservedRequest) -> None:
        for position in range(self._known, observed.index):
            native = observed.recording.messages[position]
            self._last_seen |= dict.fromkeys(extract_identifiers(full_message_text(native)), position)
            said = format_named(LAB_FORMAT).decode(native, position).text
            self._said = said if said.strip() else self._said
        self._known = observed.index

    def _add(self, name: str, *, is_met: bool) -> None:
        count = self.counts.setdefault(name, [0, 0])
        count[0] += is_met
        count[1] += 1

    async def figures(self) -> Mapping[str, float]:
        """Return the shares; none where nothing was demanded."""
        shares = {f"M1.{name}": met / total for name, (met, total) in self.counts.items()}
        if self.recall is None:
            shares = {name: share for name, share in shares.items() if not name.endswith("_recall")}
        return {**shares, "M1.demands": self.counts["far"][1]} if shares else {}


@dataclass(slots=True)
class InstructionRetention:
    """M13: which of the standing instructions stand verbatim in the request, on average over all requests.

    `system` is of system text, the first prompt and the newest one, `rules` of the sentences of the user's that say
    what always or never is to be done, `verbatim` of both together; `users` is of all the user's messages.
    """

    counts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By name: how many stood there, and of how many."""
    _standing: list[str] = field(default_factory=list[str])
    _rules: list[str] = field(default_factory=list[str])
    _prompts: list[str] = field(default_factory=list[str])
    _known: int = 0

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request."""
        for native in observed.request.messages[self._known :]:
            text = full_message_text(native).strip()
            if native["role"] == "system" and text:
                self._standing.append(text)
            elif native["role"] == "user" and text:
                self._standing += [text] if not self._prompts else []
                self._prompts.append(text)
                self._rules += extract_rules(text)
        self._known = len(observed.request.messages)
        standing = {*self._standing, *self._prompts[-1:]}
        self._count("system", standing, observed.text)
        self._count("rules", {*self._rules} - standing, observed.text)
        self._count("verbatim", {*self._rules} | standing, observed.text)
        self._count("users", self._prompts, observed.text)

    def _count(self, name: str, wanted: Collection[str], text: str) -> None:
        count = self.counts.setdefault(name, [0, 0])
        count[0] += sum(one in text for one in wanted)
        count[1] += len(wanted)

    async def figures(self) -> Mapping[str, float]:
        """Return the shares; none of what there is nothing of."""
        return {f"M13.{name}": kept / asked for name, (kept, asked) in self.counts.items() if asked}


MIN_ANSWER_CHARS = 2


@dataclass(slots=True)
class EvidenceRetention:
    """M2: of the questions, those for which every message that they need stands verbatim in the request at the end.

    `questions` is that share, `hard` that of the questions that need more than one message, `turns` the share of the
    messages themselves. M3: of the answers that stand verbatim in the conversation, the share in the request. With a
    recall behind each name `_recall`: in the request, or in one recall of 1,000 tokens whose query is the question.
    """

    recall: RecallFunction | None = None
    shares: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _last: ObservedRequest | None = None

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request: the last one counts."""
        self._last = observed

    async def figures(self) -> Mapping[str, float]:
        """Return the shares."""
        last = self._last
        if last is None:
            return {}
        texts = [full_message_text(native) for native in last.recording.messages[: last.index]]
        whole = "\n".join(texts)
        for probe in last.recording.probes:
            found = [last.text, await self.recall(probe.question)] if self.recall else [last.text]
            self._judge(probe, texts, whole, found)
        suffix = "_recall" if self.recall else ""
        return {f"{name}{suffix}": met / total for name, (met, total) in self.shares.items()}

    def _judge(self, probe: Probe, texts: Sequence[str], whole: str, views: Sequence[str]) -> None:
        found = [any(texts[index] in place for place in views) for index in probe.evidence]
        for is_found in found:
            self._count("M2.turns", is_met=is_found)
        self._count("M2.questions", is_met=all(found))
        if len(found) > 1:
            self._count("M2.hard", is_met=all(found))
        if len(probe.answer) >= MIN_ANSWER_CHARS and probe.answer in whole:
            self._count("M3.answers", is_met=any(probe.answer in place for place in views))

    def _count(self, name: str, *, is_met: bool) -> None:
        count = self.shares.setdefault(name, [0, 0])
        count[0] += is_met
        count[1] += 1


def with_final_question(recording: Recording) -> Recording:
    """Return a recording with something asked at its end, so that there is a request to look into."""
    asked = [user_message("?"), assistant_message("…")]
    nothing: list[None] = [None, None]
    return replace(
        recording,
        messages=[*recording.messages, *asked],
        times=[*recording.times, *nothing],
        usage=[*recording.usage, *nothing],
    )
