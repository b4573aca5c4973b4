"""The list of a client beside what its session has recorded.

An `AgentList` has one agent's messages in a session: those of the main agent, or those of a sub-agent in a scope of its
own. It keeps the last list as the bytes that came, so that only messages that are new are parsed and compared.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from holdfast.apps.gateway.recording.client_body import ClientBody, texts_of
from holdfast.apps.gateway.recording.governing import BodyExtras, extras_of
from holdfast.apps.gateway.recording.identity import (
    Agent,
    Chain,
    is_content_of_model,
    is_from_model,
    is_optional,
    is_prompt,
    joined_contents,
    reasoning_key,
)
from holdfast.apps.gateway.recording.recall_rounds import (
    has_other_calls,
    is_recall_result,
    joined_message,
    recall_calls,
)
from holdfast.core.conversation.tokens import message_tokens
from holdfast.counters.vocabularies import counter_for
from holdfast.session.conversation import Conversation
from holdfast.wire.answers import JsonMapping, JsonObject, Wire
from holdfast.wire.formats import format_named
from holdfast.wire.json_reader import as_object, is_list, is_mapping, objects_in
from holdfast.wire.request import Request

MAIN_AGENT = ""
MAX_SIDE_LISTS = 8
_NO_BYTES = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True)
class ClientList:
    """The messages of a request as a chain."""

    body: ClientBody
    chain: Chain
    lengths: list[int]
    """How long the chain is after each message: items that clients may leave out do not count, and contents that have
    one hash together count once."""

    @classmethod
    def read(cls, body: ClientBody, chain: Chain, lengths: Sequence[int] = ()) -> "ClientList":
        """Add the messages of a body to a chain; `lengths` are those of the first messages, which it holds already."""
        return cls(body, chain, [*lengths, *chain.extend(body.wire, body.messages(len(lengths)))])

    @property
    def last(self) -> JsonObject:
        """The last message."""
        return self.body.message(len(self.body.slices) - 1)

    def to_record(self, first: int) -> tuple[list[JsonMapping], list[int]]:
        """Return the messages from an index on, contents of one answer as one, and how long the chain is after each."""
        natives, lengths = list[JsonMapping](), list[int]()
        numbered = zip(self.body.messages(first), self.lengths[first:], strict=True)
        for are_joined, group in groupby(numbered, lambda one: is_content_of_model(self.body.wire, one[0])):
            pairs = list(group)
            natives += [joined_contents([one for one, _ in pairs])] if are_joined else [one for one, _ in pairs]
            lengths += [length for _, length in (pairs[-1:] if are_joined else pairs)]
        return natives, lengths

    def first_after(self, length: int) -> int:
        """Return the index in the list of the first message after a number of messages of the chain."""
        return bisect_right(self.lengths, length)

    def start_of_optional(self, stop: int) -> int:
        """Return the index of the first of the items before an index that clients may leave out, and that are last."""
        start = stop
        # Contents of one answer of Gemini have one length, too.
        while start > 1 and self.lengths[start - 2] == self.lengths[start - 1] and self._is_optional(start - 1):
            start -= 1
        return 0 if start == 1 and self._is_optional(0) else start

    def _is_optional(self, index: int) -> bool:
        return self.body.wire == "openai-responses" and is_optional(self.body.message(index))

    def text_after(self, length: int) -> str:
        """Return the text after a number of messages of the chain."""
        return "".join(text for native in self.body.messages(self.first_after(length)) for text in texts_of(native))

    def heard_after(self, length: int) -> list[str]:
        """Return the texts after a number of messages of the chain, also those in the results of calls."""
        natives = self.body.messages(self.first_after(length))
        parts = [part for native in natives for part in objects_in(native.get("parts"))]
        results = [native.get("output") for native in natives]
        results += [as_object(part.get("functionResponse")).get("response") for part in parts]
        return [self.text_after(length), *(text for result in results for text in _strings_in(result))]

    def has_prompt_after(self, hashes: Collection[bytes]) -> bool:
        """Return whether a prompt follows an answer whose hash is one of these."""
        ends = (end for end in self.chain.answers() if self.chain.hashes[end - 1] in hashes)
        end = next(ends, None)
        return end is not None and any(map(is_prompt, self.body.messages(self.first_after(end))))


def _strings_in(value: object) -> list[str]:
    """Return the strings in a JSON value, however deep."""
    found: list[str] = []
    rest: list[object] = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            found.append(one)
        elif is_list(one):
            rest.extend(one)
        elif is_mapping(one):
            rest.extend(one.values())
    return found


def without_given_ids(answer: JsonMapping, results: JsonMapping) -> JsonMapping:
    """Return Gemini's results without the ids that the client gave to calls that came without one.

    Gemini may send calls without ids. Some clients then give them ids in their own list, and name them in the results;
    the log has the calls as the model said them, so their results pair by name and order.
    """
    calls = [call for part in objects_in(answer.get("parts")) if is_mapping(call := part.get("functionCall"))]
    unnamed, known = {call.get("name") for call in calls if not call.get("id")}, {call.get("id") for call in calls}
    parts: list[JsonObject] = []
    for part in objects_in(results.get("parts")):
        given = part.get("functionResponse")
        if is_mapping(given) and given.get("name") in unnamed and given.get("id") not in known:
            given = {name: value for name, value in given.items() if name != "id"}
            part = {**part, "functionResponse": given}  # noqa: PLW2901
        parts.append(part)
    return {**results, "parts": parts} if unnamed else results


@dataclass(slots=True, eq=False)
class OpenAnswer:
    """An answer whose calls of `recall` were answered, while the rest of it is still to come."""

    position: int
    """Where it begins in the log."""
    messages: list[JsonMapping]


@dataclass(slots=True, eq=False)
class _PlacedSlices:
    """The messages of a list as they came, and where each was recorded: it grows with the list."""

    slices: list[msgspec.Raw] = field(default_factory=list[msgspec.Raw])
    lengths: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    by_position: dict[int, msgspec.Raw] = field(default_factory=dict[int, msgspec.Raw])
    optional: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """The index and the key of each item that has no place in the chain."""

    def is_start_of(self, slices: Sequence[msgspec.Raw], lengths: Sequence[int], positions: Sequence[int]) -> bool:
        """Return whether a list begins with these messages, and they are where they were."""
        count = len(self.slices)
        is_same_list = slices[:count] == self.slices and lengths[:count] == self.lengths
        return is_same_list and positions[: len(self.positions)] == self.positions

    def extend(self, listed: ClientList, positions: Sequence[int]) -> None:
        """Add the messages of a list that come after these."""
        count, before = len(self.slices), self.lengths[-1] if self.lengths else 0
        for index, after in enumerate(listed.lengths[count:], count):
            if after > before:
                self.by_position[positions[after - 1]] = listed.body.slices[index]
            elif is_optional(native := listed.body.message(index)):
                self.optional.append((index, reasoning_key(native)))
            else:
                self.by_position[positions[after - 1]] = _NO_BYTES
            before = after
        self.slices += listed.body.slices[count:]
        self.lengths += listed.lengths[count:]
        self.positions += positions[len(self.positions) : before]


class AgentList:
    """The messages of one agent in a session, as the list of its client has them."""

    def __init__(
        self, conversation: Conversation, chain: Chain, agent: Agent | None = None, *, has_recall: bool = False
    ) -> None:
        self.conversation = conversation
        conversation.reads_ahead = False  # the ledger is extended when an answer is stored, and nobody waits
        self.chain = chain
        self.has_recall = has_recall
        """Whether calls of `recall` are answered here, and hidden from the client."""
        self.hidden: set[int] = set()
        """Where messages were recorded that the client has in another form, or not at all."""
        self.open_answer: OpenAnswer | None = None
        self._joined_ends: dict[int, int] = {}
        """By the position of an answer's first message, that of its last, for answers of several messages."""
        self.joined: dict[int, int] = {}
        """By the position of a message that the client has as a part of the one before, the position of that one."""
        self._recall_ids: frozenset[str] = frozenset()
        self.positions: list[int] = []
        """Where each message of the chain was recorded."""
        self.reasoning_positions: dict[bytes, int] = {}
        """Where items were recorded that have no place in the chain, by their key."""
        self.agent = agent
        self.is_behind = False
        """Whether others have recorded something since."""
        self._history = conversation.history
        self.in_flight = 0
        """How many requests wait for their answer."""
        self.newest: object = None
        """An object that identifies the last of these requests."""
        self.last_text = ""
        """The text of the last answer."""
        self.last_body: ClientBody | None = None
        """The last body that was kept."""
        self._placed = _PlacedSlices()
        self._slices: list[msgspec.Raw] = []
        self._lengths: list[int] = []
        self._agent_slices: tuple[list[msgspec.Raw], msgspec.Raw, list[msgspec.Raw]] | None = None
        self._extras: BodyExtras | None = None

    def read(self, body: ClientBody) -> ClientList:
        """Return the list of a request; messages that came as the same bytes before are not parsed again."""
        lengths = self._lengths[: self.count_same(body)]
        while lengths and body.wire == "gemini" and is_content_of_model(body.wire, body.message(len(lengths) - 1)):
            lengths.pop()  # more of the answer may follow
        return ClientList.read(body, self.chain.first(lengths[-1] if lengths else 0), lengths)

    def tokens_left_out(self, prepared: Request, slices: Mapping[int, msgspec.Raw], model: str | None) -> int:
        """Return the tokens of what repairs have removed from a request, and the client's own bytes still have."""
        entries, counter = self.conversation.history.entries, counter_for(model or self.conversation.model)
        receipt = prepared.receipt
        repaired = slices.keys() - {*receipt.kept, *receipt.without_thinking}
        left = {position: sum(message_tokens(entries[position].message, counter)) for position in repaired}
        reader = format_named(self.conversation.history.format or "")
        for native, position in zip(prepared.messages, prepared.positions, strict=True) if left else ():
            if position in left:
                left[position] -= sum(message_tokens(reader.decode(native, 0), counter))
        return sum(max(0, tokens) for tokens in left.values())

    def recorded_slices(self, listed: ClientList) -> Mapping[int, msgspec.Raw]:
        """Return the messages of a list as they came, by the position where each was recorded.

        A message that the client has as a part of the one before, or as several ones, has no bytes of its own.
        """
        placed = self._placed_slices(listed)
        if self.joined:
            placed = {**placed, **{place: _NO_BYTES for place, first in self.joined.items() if first in placed}}
        return {place: raw for place, raw in placed.items() if place not in self.hidden} if self.hidden else placed

    def hidden_slices(self, listed: ClientList) -> dict[int, msgspec.Raw | None]:
        """Return the hidden messages by their positions, each with what the client has in its place, if it is last."""
        if not self.hidden:
            return {}
        placed = self._placed_slices(listed)
        joined = {end: placed[at] for at, end in self._joined_ends.items() if at in placed}
        return {place: joined.get(place) for place in self.hidden}

    def _placed_slices(self, listed: ClientList) -> Mapping[int, msgspec.Raw]:
        slices = listed.body.slices
        if not self._placed.is_start_of(slices, listed.lengths, self.positions):
            self._placed = _PlacedSlices()
        placed = self._placed
        placed.extend(listed, self.positions)
        if not placed.optional:
            return placed.by_position
        positions = ((self.reasoning_positions.get(key), slices[index]) for index, key in placed.optional)
        return placed.by_position | {position: raw for position, raw in positions if position is not None}

    def add_recorded(self, wire: Wire, numbered: Sequence[tuple[int, JsonMapping]]) -> None:
        """Take messages of the log into the list, as the client has them."""
        for from_model, group in groupby(numbered, lambda one: is_from_model(wire, one[1])):
            pairs = list(group)
            if self.has_recall and not from_model:
                self.hidden |= {place for place, native in pairs if is_recall_result(wire, native, self._recall_ids)}
                pairs = [pair for pair in pairs if pair[0] not in self.hidden]
            add = self.add_answer if from_model else self._add
            add(wire, [native for _, native in pairs], [place for place, _ in pairs])

    def catch_up(self, wire: Wire, numbered: Sequence[tuple[int, JsonMapping]], agent: Agent | None) -> bool:
        """Take the messages of the log into the list that others have added; return False if more has changed.

        So a session that several gateways serve is compared from where the list ended here, and not from its beginning.
        """
        own = sorted([*self.positions, *self.reasoning_positions.values(), *self.joined])
        is_known = not self.has_recall and self._history is self.conversation.history
        if not is_known or [position for position, _ in numbered[: len(own)]] != own:
            return False
        self.add_recorded(wire, numbered[len(own) :])
        if agent != self.agent:
            self.agent, self._agent_slices = agent, None
        self.is_behind, self.newest = False, None
        return True

    def read_again(self, wire: Wire, start: bytes, numbered: Sequence[tuple[int, JsonMapping]]) -> None:
        """Begin again with the messages of the log, of which others may have added or hidden some."""
        self.chain, self._slices, self._lengths = Chain(start), [], []
        self.hidden, self.open_answer, self._joined_ends, self._recall_ids = set(), None, {}, frozenset()
        self.forget(0, 0)
        self.add_recorded(wire, numbered)
        self.is_behind = False

    def add_answer(self, wire: Wire, natives: Sequence[JsonMapping], places: Sequence[int]) -> None:
        """Take an answer into the list, as the client has it: without calls of `recall`, its rounds as one message."""
        calls = recall_calls(wire, natives) if self.has_recall else []
        before = self.open_answer
        if not calls and (before is None or wire == "openai-responses"):
            self.open_answer = None
            self._add(wire, natives, places)
            return
        self._recall_ids |= {call.id for call in calls}
        goes_on = bool(calls) and not has_other_calls(wire, natives)
        if wire == "openai-responses":
            own = [place for native, place in zip(natives, places, strict=True) if recall_calls(wire, [native])]
            for native, place in zip(natives, places, strict=True):
                if place in own or is_optional(native):
                    self.hidden.add(place)
                if place not in own:
                    self._add(wire, [native], [place])
            self.open_answer = OpenAnswer(own[0], []) if goes_on else None
            return
        answer = before or OpenAnswer(places[0], [])
        answer.messages += natives
        self.hidden.update(places)
        self.open_answer = answer if goes_on else None
        if not goes_on:
            self._joined_ends[answer.position] = places[-1]
            self._add(wire, [joined_message(wire, answer.messages)], [answer.position])

    def take_form(
        self, wire: Wire, native: JsonMapping, count: int, recorded: Sequence[tuple[int, JsonMapping]]
    ) -> None:
        """Have the first `count` of the recorded messages as the client does, as one; the others follow one by one.

        They are all that this list has from its first difference from the client's list on.
        """
        places = [place for place, _ in recorded]
        shared = self.positions.index(places[0])
        self.chain = self.chain.first(shared)
        self.forget(shared, places[0])
        known = bisect_right(self._lengths, shared)
        self._slices, self._lengths = self._slices[:known], self._lengths[:known]
        self._add(wire, [native], places[:1])
        self.joined |= dict.fromkeys(places[1:count], places[0])
        self.add_recorded(wire, [(place, one) for place, one in recorded[count:]])

    def parts_at(self, index: int) -> list[int]:
        """Return where the messages were recorded that the client has as its message at an index of the chain."""
        first = self.positions[index]
        return [first, *(place for place, joined in self.joined.items() if joined == first)]

    def _add(self, wire: Wire, natives: Sequence[JsonMapping], places: Sequence[int]) -> None:
        self.note_places(natives, places, self.chain.extend(wire, natives))

    def note_places(self, natives: Sequence[JsonMapping], places: Sequence[int], lengths: Sequence[int]) -> None:
        """Remember where the last messages of the chain were recorded; `lengths` say how long it is after each."""
        for native, place, length in zip(natives, places, lengths, strict=True):
            if length > len(self.positions):
                self.positions.append(place)
            elif is_optional(native):
                self.reasoning_positions[reasoning_key(native)] = place
            else:
                self.joined[place] = self.positions[-1]

    def forget(self, length: int, place: int) -> None:
        """Forget where messages were recorded, after a number of messages of the chain and from a place on."""
        del self.positions[length:]
        self.joined = {one: first for one, first in self.joined.items() if one < place}
        self.reasoning_positions = {key: one for key, one in self.reasoning_positions.items() if one < place}

    def count_same(self, body: ClientBody) -> int:
        """Return how many first messages of a list came as the same bytes before."""
        new, old = body.slices, self._slices
        low, high = 0, min(len(new), len(old))
        # `read_body` reuses the slices of an earlier body from the first one on, so that all before a reused one are.
        if (high and new[high - 1] is old[high - 1]) or new[:high] == old[:high]:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if new[low:middle] == old[low:middle] else (low, middle - 1)
        return low

    def keep(self, listed: ClientList) -> None:
        """Keep a list, to compare the next one with it."""
        body = listed.body
        if not self._has_same_extras(body):
            self._extras = None
        self.last_body, self._slices, self._lengths = body, body.slices, listed.lengths
        self._agent_slices = body.system_slices, body.tools_slice, body.definition_slices

    def extras_of(self, body: ClientBody) -> BodyExtras:
        """Return the system text and the tools of the list that was kept last; they are parsed when they change."""
        if self._extras is None:
            self._extras = extras_of(body)
        return self._extras

    def agent_of(self, body: ClientBody) -> Agent:
        """Return the agent that speaks in a request."""
        return self.agent if self.agent and self._has_same_extras(body) else Agent.of(body)

    def _has_same_extras(self, body: ClientBody) -> bool:
        return self._agent_slices == (body.system_slices, body.tools_slice, body.definition_slices)

    def is_other_agent(self, body: ClientBody) -> bool:
        """Return whether a request comes from another agent than the one of this list."""
        return self.agent is not None and not self.agent.is_same(self.agent_of(body))
