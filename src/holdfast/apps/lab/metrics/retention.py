"""How much needed content is in a request: M1 demand retention and M13 instruction retention.

For recordings with questions also M2 evidence retention and M3 recoverable answers, and for recordings of agents that
compacted by themselves M16, the comparison with their summaries.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.apps.lab.identifiers import extract_identifiers, extract_orders, extract_rules, name_pieces
from holdfast.apps.lab.recordings import Probe, Recording
from holdfast.apps.lab.replay import ObservedRequest
from holdfast.apps.lab.simulation import LAB_FORMAT, LAB_MODEL, full_message_text
from holdfast.core.conversation.messages import ToolCall
from holdfast.core.ledger.identifiers import argument_text, argument_value
from holdfast.core.ledger.tool_calls import describe_call
from holdfast.counters.vocabularies import counter_for
from holdfast.testing.chat import assistant_message, user_message
from holdfast.wire.formats import format_named

FAR_DEMAND_MESSAGES = 20
"""A demand is far if its identifier last occurred more than this many messages ago."""
AGE_BUCKETS = (20, 50, 100, 200, 500)
"""The ages by which retention is split."""
SHORT_PROMPT_TOKENS = 80
"""A message of the user up to this size is short."""
MAX_ASKED_NAMES = 4
"""How many names that are not in view one recall asks for by their pieces."""
RecallFunction = Callable[[str], Awaitable[str]]


class ShareTally:
    """Counts by name: how many of how many were found."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def add(self, name: str, found: int, total: int = 1) -> None:
        before = self.counts.get(name, (0, 0))
        self.counts[name] = before[0] + found, before[1] + total

    def figures(self) -> dict[str, float]:
        """Return the shares by name."""
        return {name: found / total for name, (found, total) in self.counts.items() if total}


@dataclass(slots=True)
class DemandRetention:
    """M1: the share in view of the identifiers in a call's arguments that last occurred more than 20 messages before.

    `far` is the share that is verbatim in the request. `far_recall` is the share in the request or in one recall of
    1,000 tokens whose query is the last text of the conversation, and `far_asked` the same with a query that names the
    pieces of the missing identifiers, as a model asks that remembers a part of a name. `first` and `first_recall` are
    the same for the first far use of each identifier. `used` is `far` for commands, searches and other arguments, and
    `written` for text that a call writes into a file. `by_age` is the share in view by the distance to the last
    occurrence, in messages.
    """

    recall: RecallFunction | None = None
    shares: ShareTally = field(default_factory=ShareTally)
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
        asked = await self.recall(_piece_query(lost)) if self.recall and lost else ""
        used = _names_outside_written_text(message.calls)
        for name, age in sorted(far.items()):
            is_found, is_reached = name not in lost, name not in lost or name in answer
            self.shares.add("far", is_found)
            self.shares.add("far_recall", is_reached)
            self.shares.add("far_asked", is_found or name in asked)
            self.shares.add("used" if name in used else "written", is_found)
            self.shares.add(f"by_age.{max(at for at in AGE_BUCKETS if age >= at)}", is_found)
            if name not in self._used:
                self._used.add(name)
                self.shares.add("first", is_found)
                self.shares.add("first_recall", is_reached)

    def _index_messages(self, observed: ObservedRequest) -> None:
        for position in range(self._indexed, observed.index):
            native = observed.recording.messages[position]
            self._last_seen |= dict.fromkeys(extract_identifiers(full_message_text(native)), position)
            text = format_named(LAB_FORMAT).decode(native, position).text
            self._last_text = text if text.strip() else self._last_text
        self._indexed = observed.index

    async def figures(self) -> Mapping[str, float]:
        """Return the shares; none if nothing was demanded."""
        shares = {f"M1.{name}": share for name, share in self.shares.figures().items()}
        if self.recall is None:
            shares = {name: share for name, share in shares.items() if not name.endswith(("_recall", "_asked"))}
        return {**shares, "M1.demands": self.shares.counts["far"][1]} if shares else {}


def _names_outside_written_text(calls: Iterable[ToolCall]) -> set[str]:
    """Return the identifiers that calls use in a command, a search or another argument."""
    found: set[str] = set()
    for call in calls:
        value = argument_value(call.arguments)
        written = describe_call(call, value, 0).content
        told = argument_text(call.arguments)
        if written:
            told = "\n".join(line for line in told.split("\n") if line not in set(written.split("\n")))
        found.update(extract_identifiers(told))
    return found


def _piece_query(names: Iterable[str]) -> str:
    """Return one short question for each of a few names: its pieces, without the separators between them."""
    return "\n".join(" ".join(name_pieces(name)) for name in sorted(names)[:MAX_ASKED_NAMES])


@dataclass(slots=True)
class OwnCompactions:
    """M16: what an agent needs after a compaction of its own, in its summary and in our request at the same place.

    Needed are the identifiers in the arguments of later calls, up to the next compaction, that occurred before it and
    not again before the call. `summary` is the share that is verbatim in the summary that the agent's model wrote,
    `view` the share in our request, and `recall` the share in our request or in one recall of 1,000 tokens whose query
    is the last text before the call. `summary_tokens` and `view_tokens` are their mean sizes.
    """

    recall: RecallFunction | None = None
    shares: ShareTally = field(default_factory=ShareTally)
    _open: tuple[str, str, set[str]] | None = None
    """The summary, our request, and the identifiers that occurred before and not since."""
    _next: int = 0
    _indexed: int = 0
    _said: set[str] = field(default_factory=set[str])
    _last_text: str = ""

    async def observe(self, observed: ObservedRequest) -> None:
        compactions = observed.recording.compactions
        if self._next < len(compactions) and observed.index >= compactions[self._next].index:
            self._index_messages(observed, compactions[self._next].index)
            summary = compactions[self._next].summary
            self._open = summary, observed.text, set(self._said)
            self._next += 1
            counter = counter_for(LAB_MODEL)
            self.shares.add("summary_tokens", counter.count(summary))
            self.shares.add("view_tokens", counter.count(observed.text))
        self._index_messages(observed, observed.index)
        if self._open is None:
            return
        message = format_named(LAB_FORMAT).decode(observed.recording.messages[observed.index], observed.index)
        names = {name for call in message.calls for name in extract_identifiers(argument_text(call.arguments))}
        summary, view, before = self._open
        needed = sorted(names & before)
        lost = [name for name in needed if name not in view]
        answer = await self.recall(self._last_text) if self.recall and lost and self._last_text else ""
        for name in needed:
            self.shares.add("summary", name in summary)
            self.shares.add("view", name in view)
            self.shares.add("recall", name in view or name in answer)

    def _index_messages(self, observed: ObservedRequest, stop: int) -> None:
        for position in range(self._indexed, stop):
            native = observed.recording.messages[position]
            names = set(extract_identifiers(full_message_text(native)))
            self._said |= names
            if self._open is not None:
                self._open[2].difference_update(names)
            text = format_named(LAB_FORMAT).decode(native, position).text
            self._last_text = text if text.strip() else self._last_text
        self._indexed = max(self._indexed, stop)

    async def figures(self) -> Mapping[str, float]:
        shares = {f"M16.{name}": share for name, share in self.shares.figures().items()}
        return shares if self.recall else {name: one for name, one in shares.items() if name != "M16.recall"}


@dataclass(slots=True)
class InstructionRetention:
    """M13: the share of lasting instructions that are verbatim in the request, on average over all requests.

    `system` is the share of system text, the first prompt and the newest prompt; `rules` is that of the user's
    sentences that say what to do always or never, without those texts; `verbatim` is that of both together. `orders`
    is the share of the sentences that begin with always or never. `users` is the share of all messages that the user
    wrote, and `short` that of those with at most 80 tokens.
    """

    shares: ShareTally = field(default_factory=ShareTally)
    _instructions: list[str] = field(default_factory=list[str])
    _rules: list[str] = field(default_factory=list[str])
    _orders: list[str] = field(default_factory=list[str])
    _prompts: list[str] = field(default_factory=list[str])
    _short: list[str] = field(default_factory=list[str])
    _indexed: int = 0

    async def observe(self, observed: ObservedRequest) -> None:
        """Observe one request."""
        for index, native in enumerate(observed.request.messages[self._indexed :], self._indexed):
            text = full_message_text(native).strip()
            if native["role"] == "system" and text:
                self._instructions.append(text)
            elif native["role"] == "user" and text and index not in observed.recording.inserted:
                self._instructions += [text] if not self._prompts else []
                self._prompts.append(text)
                self._short += [text] if counter_for(LAB_MODEL).count(text) <= SHORT_PROMPT_TOKENS else []
                self._rules += extract_rules(text)
                self._orders += extract_orders(text)
        self._indexed = len(observed.request.messages)
        system = {*self._instructions, *self._prompts[-1:]}
        by_name: dict[str, Collection[str]] = {
            "system": system,
            "rules": {*self._rules} - system,
            "verbatim": {*self._rules} | system,
            "orders": {*self._orders} - system,
            "users": self._prompts,
            "short": self._short,
        }
        for name, texts in by_name.items():
            self.shares.add(name, sum(text in observed.text for text in texts), len(texts))

    async def figures(self) -> Mapping[str, float]:
        return {f"M13.{name}": share for name, share in self.shares.figures().items()}


MIN_ANSWER_CHARS = 2


@dataclass(slots=True)
class EvidenceRetention:
    """M2: the share of questions for which every needed message is verbatim in the last request.

    `questions` is that share, `hard` that of the questions that need more than one message, and `turns` the share of
    the messages themselves. M3: the share in the request of the answers that are verbatim in the conversation. A name
    that ends in `_recall` counts the request and one recall of 1,000 tokens whose query is the question.
    """

    recall: RecallFunction | None = None
    shares: ShareTally = field(default_factory=ShareTally)
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
        return {f"{name}{suffix}": share for name, share in self.shares.figures().items()}

    def _check(self, probe: Probe, texts: Sequence[str], whole: str, views: Sequence[str]) -> None:
        found = [any(texts[index] in view for view in views) for index in probe.evidence]
        self.shares.add("M2.turns", sum(found), len(found))
        self.shares.add("M2.questions", all(found))
        if len(found) > 1:
            self.shares.add("M2.hard", all(found))
        if len(probe.answer) >= MIN_ANSWER_CHARS and probe.answer in whole:
            self.shares.add("M3.answers", any(probe.answer in view for view in views))


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
