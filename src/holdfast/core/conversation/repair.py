"""Make a broken history valid for every provider.

Recorded histories can contain unanswered calls, orphaned, late and duplicate results, repeated call ids, and
empty turns. They can begin or end with the wrong role. Each defect causes a rejected request. Repair produces
the strictest common form, leaves valid parts unchanged, and is idempotent. It derives everything it adds from
positions, so it always repairs the same history in the same way and a cached prefix stays valid.

Repair does not touch a call without a result while it may still be running. Only a later message that is not a
result, or the caller's statement that the turn was interrupted, proves that no result will come.

Providers also run tools of their own. Such a use is open until its result comes, in the same message or in a later
one, and only results of other tools may come in between. A history that ends while a use is open is a paused turn,
which the provider continues.

Nearly every history is already valid, so `is_valid_history` checks this first, in one pass over outlines.
`GrowingRepair` repairs a history that grows: each exchange once, when the next one has begun.
"""

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from holdfast.core.conversation.batching import ONE_RESULT_PER_MESSAGE, Batching
from holdfast.core.conversation.messages import (
    TEXT_OUTLINE,
    Entry,
    Message,
    Opaque,
    Text,
    ToolCall,
    ToolResult,
    unpaired_server_parts,
    user,
)
from holdfast.core.conversation.pairing import CallPairing, Repair
from holdfast.core.conversation.tokens import Counter, message_tokens


def is_valid_history(entries: Sequence[Entry], batching: Batching = ONE_RESULT_PER_MESSAGE) -> bool:
    """Return whether no message is empty and every call has exactly one result directly after its batch."""
    if batching.is_itemized:
        return _are_items_valid(entries, batching)
    if batching.calls_follow_user and any(is_split_turn(*pair) for pair in pairwise(entries)):
        return False
    return _are_messages_valid(entries, batching)


def is_split_turn(before: Entry, after: Entry) -> bool:
    """Return whether a message with calls directly follows another message of the model."""
    return bool(after.message.outline.call_ids) and before.message.role == after.message.role


def _are_messages_valid(entries: Sequence[Entry], batching: Batching) -> bool:
    """Return whether each message with calls is followed by its results in the form that the format requires."""
    open_calls: dict[str, None] = {}
    open_uses: set[str] = set()
    seen: set[str] = set()
    for entry in entries:
        outline = entry.message.outline
        if outline is TEXT_OUTLINE and not open_calls and not open_uses:
            continue  # as most are
        call_ids, result_ids, is_filled, has_results_first = outline[:4]
        follows = not (open_uses or outline.has_server_tools) or _follow_uses(entry.message, open_uses)
        if not is_filled or not follows or (outline.is_first and entry is not entries[0]):
            return False
        if result_ids:
            for call_id in result_ids:
                if call_id not in open_calls:
                    return False
                del open_calls[call_id]
            # A user message with results holds all results of the batch, before any other part.
            if entry.message.role == "user" and (open_calls or not has_results_first):
                return False
        elif open_calls:
            return False
        if call_ids and not _register_calls(call_ids, open_calls, set() if batching.pairs_by_name else seen, batching):
            return False
    return not open_calls and not (open_uses and _is_over(entries, batching))


def _is_over(entries: Sequence[Entry], batching: Batching) -> bool:
    """Return whether the last turn of the model is over, although a tool that the provider runs has no result.

    Gemini continues no turn of the model: only the user's responses may be awaited.
    """
    last = entries[-1].message
    return batching.calls_follow_user and last.role == "assistant" and not last.outline.call_ids


def _follow_uses(message: Message, open_uses: set[str]) -> bool:
    """Update the provider's own open tool uses; return whether the message may come while they are open."""
    if message.role != "assistant":
        return not (message.outline.server_uses or message.outline.server_results) and _has_only_results(message)
    results = set(message.outline.server_results)
    if len(results) < len(message.outline.server_results) or not results <= open_uses:
        return False
    if _repeated_uses(message, open_uses) or _lost_callers(message, open_uses):
        return False
    open_uses -= results
    open_uses.update(message.outline.server_uses)
    return True


def _repeated_uses(message: Message, open_uses: Container[str]) -> set[str]:
    """Return the ids of open uses that a message uses again."""
    return {part.server_use for part in message.parts if isinstance(part, Opaque) and part.server_use in open_uses}


def _lost_callers(message: Message, open_uses: Container[str]) -> set[str]:
    """Return the callers of a message's calls that are neither open nor in the message before the calls."""
    own: set[str] = set()
    lost: set[str] = set()
    for part in message.parts:
        if isinstance(part, Opaque) and part.server_use:
            own.add(part.server_use)
        elif isinstance(part, ToolCall) and part.caller and part.caller not in own and part.caller not in open_uses:
            lost.add(part.caller)
    return lost


def _has_only_results(message: Message) -> bool:
    return all(isinstance(part, ToolResult) for part in message.parts)


def _are_items_valid(entries: Sequence[Entry], batching: Batching) -> bool:
    """Return whether results follow each batch of the model's items, and an item of the model follows reasoning."""
    open_calls: dict[str, None] = {}
    open_uses: set[str] = set()
    seen: set[str] = set()
    kinds: dict[str, str] = {}
    is_answering = is_leading = is_over = False
    for entry in entries:
        outline = entry.message.outline
        call_ids, result_ids, is_filled, _, is_reasoning = outline[:5]
        is_models = entry.message.role == "assistant"
        if is_over or not (is_filled or is_reasoning) or (is_leading and not is_models):
            return False
        if (open_uses or outline.has_server_tools) and not _follow_uses(entry.message, open_uses):
            return False
        is_leading, is_over = is_reasoning, outline.is_final
        if result_ids:
            if any(open_calls.pop(call_id, call_id) is not None for call_id in result_ids):
                return False
            if any(kinds[result.call_id] != result.kind for result in entry.message.results):
                return False
            is_answering = bool(open_calls)
        elif open_calls and (is_answering or not is_models):
            return False
        if call_ids:
            kinds.update((call.id, call.result_kind) for call in entry.message.calls)
            if not _register_calls(call_ids, open_calls, seen, batching):
                return False
    return not open_calls and not is_leading


def _register_calls(call_ids: Iterable[str], open_calls: dict[str, None], seen: set[str], batching: Batching) -> bool:
    """Register calls as open; return whether their ids are new and acceptable to the provider."""
    takes_id = batching.accepts_id
    for call_id in call_ids:
        if not call_id or call_id in seen or (takes_id and not takes_id(call_id)):
            return False
        seen.add(call_id)
        open_calls[call_id] = None
    return True


MISSING_START_NOTICE = "[The conversation before this point is not available.]"
NO_NEW_MESSAGE_NOTICE = "[No new message from the user.]"
_ANSWERED_ROLES = frozenset({"user", "tool"})
"""Roles of messages that the model answers."""
OPENING = Entry(user(MISSING_START_NOTICE, trust="system"))
CLOSING = Entry(user(NO_NEW_MESSAGE_NOTICE, trust="system"))


class RepairedEntries(NamedTuple):
    """A valid view, and the repairs that produced it."""

    entries: list[Entry]
    repairs: list[Repair]
    pending: tuple[str, ...] = ()
    """Ids of the last calls, which may still be running."""


def repair_entries(
    entries: Sequence[Entry], *, is_interrupted: bool = False, batching: Batching = ONE_RESULT_PER_MESSAGE
) -> RepairedEntries:
    """Return the entries in a form that every provider accepts, with batches in the form of `batching`."""
    repairs: list[Repair] = []
    pending: list[str] = []
    repaired = list(entries)
    if not is_valid_history(entries, batching):
        begun = _from_last_beginning(entries, repairs)
        is_over = is_interrupted or (bool(begun) and _is_over(begun, batching))
        paired = _without_unpaired_server_tools(begun, repairs, is_interrupted=is_over)
        paired = _without_lost_callers(paired, repairs)
        repaired = list(_without_blanks(paired, batching, repairs))
        if batching.is_itemized:
            repaired = _without_orphaned_reasoning(_without_early_ends(repaired, repairs), repairs)
        pairing = CallPairing(repaired, is_interrupted=is_interrupted, batching=batching)
        repaired = pairing.pair()
        repairs += [*pairing.id_repairs, *pairing.place_repairs]
        pending = pairing.pending
        if batching.calls_follow_user:
            repaired = _with_calls_after_users(repaired, repairs)
    return RepairedEntries(_with_valid_ends(repaired, repairs, pending), repairs, tuple(pending))


class _Stretch:
    """The repair of neighboring entries of a view. Repairs are listed by stage, in the order in which stages run."""

    def __init__(
        self,
        view: Sequence[Entry],
        start: int,
        stop: int,
        batching: Batching,
        *,
        is_interrupted: bool = False,
        earlier: set[str],
    ) -> None:
        self.entries: list[Entry] = list(view[start:stop])
        self.repairs: tuple[list[Repair], ...] = ([], [], [], [])
        self.call_ids = {call_id for entry in self.entries for call_id in entry.message.outline.call_ids}
        """The ids of the calls, before and after repair."""
        self.made_ids: set[str] = set()
        self.unanswered: Mapping[str, None] = {}
        self.pending: list[str] = []
        if is_valid_history(self.entries, batching) and self.call_ids.isdisjoint(earlier):
            return
        blanks: list[Repair] = []
        orphans: list[Repair] = []
        numbered = [Entry(entry.message, index) for index, entry in enumerate(self.entries, start)]
        filled = list(_without_blanks(numbered, batching, blanks))
        if batching.is_itemized:
            filled = _without_orphaned_reasoning(filled, orphans)
        following = view[stop].message if stop < len(view) else None
        pairing = CallPairing(
            filled, is_interrupted=is_interrupted, batching=batching, earlier=earlier, following=following
        )
        self.entries = [positioned(entry, view) for entry in pairing.pair()]
        stages = blanks, orphans, pairing.id_repairs, pairing.place_repairs
        self.repairs = tuple([positioned_repair(repair, view) for repair in stage] for stage in stages)
        self.call_ids |= pairing.used_ids
        self.made_ids, self.unanswered, self.pending = pairing.made_ids, pairing.unanswered, pairing.pending


def positioned(entry: Entry, view: Sequence[Entry]) -> Entry:
    """Return an entry that was numbered by its index in a view with its own position; an unchanged one as it was."""
    if entry.position is None:
        return entry
    original = view[entry.position]
    return original if entry.message is original.message else Entry(entry.message, original.position)


def positioned_repair(repair: Repair, view: Sequence[Entry]) -> Repair:
    """Return a repair of a view whose entries were numbered by their index with the position of its entry."""
    return repair if repair.position is None else Repair(view[repair.position].position, repair.description)


class CountedRepair(NamedTuple):
    """A valid view, the repairs that produced it, and its tokens."""

    entries: list[Entry]
    repairs: list[Repair]
    pending: tuple[str, ...]
    tokens: int


class GrowingRepair:
    """Repairs a view that grows: with the result of `repair_entries` for the whole, numbered by the index in the view.

    What comes before the newest exchange is repaired once. It is repaired again only if a result arrives for one of its
    calls, or if a later call has an id that repair has made. Views with unpaired tools of the provider, or with an item
    that nothing may follow, are always repaired as a whole, and those of formats that pair by name whenever they need a
    repair.
    """

    def __init__(self, batching: Batching, counter: Counter) -> None:
        self._batching = batching
        self._counter = counter
        self._known_length = 0
        self._needs_all = False
        self._reset()

    def _reset(self) -> None:
        self.settled = 0
        """How many entries of the view were repaired for good."""
        self._entries: list[Entry] = []
        self._tokens = self._counted = 0
        """The tokens of the first settled entries, and how many these are: a sound view need not be counted here."""
        self._repairs: tuple[list[Repair], ...] = ([], [], [], [])
        self._call_ids: set[str] = set()
        self._made_ids: set[str] = set()
        self._unanswered: dict[str, None] = {}

    def extend(self, view: list[Entry], tokens: int, *, is_interrupted: bool) -> CountedRepair:
        """Return the repair of a view that begins with the one of the last call; `tokens` are those of the view."""
        for entry in view[self._known_length :]:
            outline = entry.message.outline
            self._needs_all |= outline.has_server_tools or outline.is_final or outline.is_first
        self._known_length = len(view)
        newer, made = view[self.settled :], self._made_ids
        cut = self._last_exchange(view)
        if self._batching.pairs_by_name and not self._needs_all and self._settle_sound(newer, cut - self.settled):
            return self._with_ends(view, tokens, [], ())
        if self._batching.pairs_by_name or self._needs_all:
            numbered = [Entry(entry.message, index) for index, entry in enumerate(view)]
            done = repair_entries(numbered, is_interrupted=is_interrupted, batching=self._batching)
            entries = [positioned(entry, view) for entry in done.entries]
            repairs = [positioned_repair(one, view) for one in done.repairs]
            return CountedRepair(entries, repairs, done.pending, self._count(entries))
        has_made_id = made and any(not made.isdisjoint(entry.message.outline.call_ids) for entry in newer)
        if has_made_id or (self._unanswered and _has_result_for(newer, self._unanswered)):
            self._reset()
            newer, cut = view, self._last_exchange(view)
        if not any(self._repairs) and self._settle_sound(newer, cut - self.settled):
            return self._with_ends(view, tokens, [], ())
        if cut > self.settled:
            self._settle(view, cut)
        tail = _Stretch(
            view, self.settled, len(view), self._batching, is_interrupted=is_interrupted, earlier=self._call_ids
        )
        blanks, orphans, ids, places = zip(self._repairs, tail.repairs, strict=True)
        # Orphaned reasoning is removed from the end to the beginning.
        repairs = [repair for stage in (*blanks, *reversed(orphans), *ids, *places) for repair in stage]
        self._tokens += self._count(self._entries[self._counted :])
        self._counted = len(self._entries)
        tokens = self._tokens + self._count(tail.entries)
        return self._with_ends([*self._entries, *tail.entries], tokens, repairs, tuple(tail.pending))

    def _last_exchange(self, view: list[Entry]) -> int:
        """Return the index of the first entry of the newest exchange that is not settled yet."""
        cut = len(view) - 1
        while cut > self.settled and not _begins_exchange(view[cut - 1], view[cut]):
            cut -= 1
        return cut

    def _with_ends(
        self, whole: list[Entry], tokens: int, repairs: list[Repair], pending: tuple[str, ...]
    ) -> CountedRepair:
        """Return repaired entries with valid ends; `tokens` are those of the entries."""
        sent = _with_valid_ends(whole, repairs, pending)
        if sent is not whole:
            spoken = next(index for index, entry in enumerate(sent) if entry.message.role != "system")
            tokens += self._count([entry for entry in (sent[spoken], sent[-1]) if entry is OPENING or entry is CLOSING])
        return CountedRepair(sent, repairs, pending, tokens)

    def _count(self, entries: Sequence[Entry]) -> int:
        return sum(sum(message_tokens(entry.message, self._counter)) for entry in entries)

    def _settle_sound(self, newer: list[Entry], count: int) -> bool:
        """Settle the first of the newer entries as they are, if none of them needs a repair; return whether so."""
        ids = [call_id for entry in newer for call_id in entry.message.outline.call_ids]
        is_repeated = not self._batching.pairs_by_name and not self._call_ids.isdisjoint(ids)
        if is_repeated or not is_valid_history(newer, self._batching):
            return False
        if count > 0:
            settled = newer[:count]
            self.settled += count
            self._entries += settled
            if ids:
                self._call_ids.update(*(entry.message.outline.call_ids for entry in settled))
        return True

    def _settle(self, view: Sequence[Entry], cut: int) -> None:
        """Repair the entries before a cut for good, unless the entries after it still answer one of their calls."""
        stretch = _Stretch(view, self.settled, cut, self._batching, earlier=self._call_ids)
        unanswered = {**self._unanswered, **stretch.unanswered}
        for call_id in stretch.call_ids.difference(stretch.unanswered):
            unanswered.pop(call_id, None)
        if unanswered and _has_result_for(view[cut:], unanswered):
            return
        self.settled, self._unanswered = cut, unanswered
        self._entries += stretch.entries
        blanks, orphans, ids, places = self._repairs
        newer = stretch.repairs
        self._repairs = [*blanks, *newer[0]], [*newer[1], *orphans], [*ids, *newer[2]], [*places, *newer[3]]
        self._call_ids |= stretch.call_ids
        self._made_ids |= stretch.made_ids


def _has_result_for(entries: Sequence[Entry], call_ids: Mapping[str, None]) -> bool:
    """Return whether entries hold a result for earlier calls, before a call of their own with the same id."""
    called: set[str] = set()
    for entry in entries:
        outline = entry.message.outline
        if any(call_id in call_ids and call_id not in called for call_id in outline.result_ids):
            return True
        called.update(outline.call_ids)
    return False


def _begins_exchange(before: Entry, after: Entry) -> bool:
    """Return whether the model begins to answer with an entry, so that nothing before it can still change."""
    return (
        after.message.role == "assistant"
        and before.message.role != "assistant"
        and before.message.outline.has_no_empty_text
        and after.message.outline.has_no_empty_text
        and not after.message.outline.result_ids
    )


def _without_unpaired_server_tools(
    entries: Sequence[Entry], repairs: list[Repair], *, is_interrupted: bool
) -> Sequence[Entry]:
    """Return entries in which each use of a provider's own tool has its result, or may still get it."""
    unpaired: dict[int, list[Opaque]] = {}
    for index, part in _unpaired_server_tools(entries, is_interrupted=is_interrupted):
        unpaired.setdefault(index, []).append(part)
    kept = list(entries)
    for index, left_out in sorted(unpaired.items()):
        message, position = entries[index]
        for part in left_out:
            lack = "without its tool use" if part.server_result else "that has no result"
            repairs.append(Repair(position, f"left out a {part.kind} {lack}"))
        gone = set(map(id, left_out))
        parts = tuple(part for part in message.parts if id(part) not in gone)
        kept[index] = Entry(message.with_parts(parts), position)
    return kept


def _unpaired_server_tools(entries: Sequence[Entry], *, is_interrupted: bool) -> Iterator[tuple[int, Opaque]]:
    """Yield the uses that will get no result, and results without a use, with the index of their entry."""
    open_uses: dict[str, tuple[int, Opaque]] = {}
    for index, (message, _) in enumerate(entries):
        uses, others = unpaired_server_parts(message.parts)
        if message.role != "assistant":
            if not _has_only_results(message):
                yield from open_uses.values()
                open_uses.clear()
            yield from ((index, part) for part in (*uses, *others))
            continue
        for call_id in _repeated_uses(message, open_uses):
            yield open_uses.pop(call_id)
        for part in others:
            if open_uses.pop(part.server_result, None) is None:
                yield index, part
        open_uses.update((part.server_use, (index, part)) for part in uses)
    if is_interrupted:
        yield from open_uses.values()


def _without_lost_callers(entries: Sequence[Entry], repairs: list[Repair]) -> Sequence[Entry]:
    """Return entries in which a call whose program is not there before it, and its result, are those of the model."""
    kept = list(entries)
    open_uses: set[str] = set()
    orphaned: set[str] = set()
    for index, (message, position) in enumerate(entries):
        lost = _lost_callers(message, open_uses)
        orphaned.update(call.id for call in message.calls if call.caller in lost)
        open_uses.difference_update(message.outline.server_results)
        open_uses.update(message.outline.server_uses)
        parts = tuple(
            part.without_caller()
            if (isinstance(part, ToolCall) and part.caller in lost)
            or (isinstance(part, ToolResult) and part.caller and part.call_id in orphaned)
            else part
            for part in message.parts
        )
        if any(map(operator.is_not, parts, message.parts)):
            what = "a call" if lost else "the result of a call"
            repairs.append(Repair(position, f"sent {what} of a program that is not there any more as the model's"))
            kept[index] = Entry(message.with_parts(parts), position)
    return kept


def _is_paused(entries: Sequence[Entry]) -> bool:
    """Return whether the last turn of the model waits for the result of a tool that the provider runs."""
    answered: set[str] = set()
    for entry in reversed(entries):
        if entry.message.role == "assistant":
            if not answered.issuperset(entry.message.outline.server_uses):
                return True
            answered.update(entry.message.outline.server_results)
        elif not _has_only_results(entry.message):
            break
    return False


def _with_calls_after_users(entries: Iterable[Entry], repairs: list[Repair]) -> list[Entry]:
    """Return entries in which each message with calls follows a message of the user.

    Two messages of the model at adjacent positions are parts of one turn and are joined. If messages between them
    are missing, a notice takes their place.
    """
    whole: list[Entry] = []
    for entry in entries:
        turn = entry
        while whole and is_split_turn(whole[-1], turn) and _are_adjacent(whole[-1], turn):
            repairs.append(Repair(turn.position, "joined a turn with calls to the turn of the model before it"))
            before = whole.pop()
            joined = replace(
                before.message,
                parts=(*before.message.parts, *turn.message.parts),
                repair_notes=(*before.message.repair_notes, *turn.message.repair_notes),
                extra_fields_json=before.message.extra_fields_json + turn.message.extra_fields_json,
            )
            turn = before.with_message(joined)
        if turn is not entry:
            repairs.append(Repair(turn.position, "joined a turn of the model with the calls after it"))
        if whole and is_split_turn(whole[-1], turn):
            repairs.append(Repair(turn.position, "put a user message before a turn with calls"))
            whole.append(CLOSING)
        whole.append(turn)
    return whole


def _are_adjacent(before: Entry, after: Entry) -> bool:
    return before.position is not None and before.position + 1 == after.position


def _without_orphaned_reasoning(entries: Sequence[Entry], repairs: list[Repair]) -> list[Entry]:
    """Return entries without reasoning that no other message of the model follows."""
    kept: list[Entry] = []
    for entry in reversed(entries):
        if entry.message.outline.is_reasoning_only and (not kept or kept[-1].message.role != "assistant"):
            repairs.append(Repair(entry.position, "removed reasoning without an answer after it"))
        else:
            kept.append(entry)
    return kept[::-1]


LOST_REASONING_NOTE = "left out an item id: the reasoning before the item is not sent"


def without_lost_reasoning(
    entries: list[Entry], batching: Batching, message_before: Callable[[int], tuple[int, Message] | None]
) -> tuple[list[Entry], list[Repair]]:
    """Return a view in which no item has an id by which its provider would ask for reasoning that is not sent.

    What the model said after its reasoning in one response needs it. `message_before` returns the message that the same
    agent has before a position of the history, with its position; None if there is none.
    """
    if not batching.reasoned_types:
        return entries, []
    sent = {entry.position for entry in entries if entry.message.outline.is_reasoning_only}
    reasons: dict[int, int | None] = {}
    """By the position of an item of the model, where the reasoning is that it needs."""
    kept: list[Entry] = []
    repairs: list[Repair] = []
    for entry in entries:
        message, position = entry
        native = message.native or {}
        if position is not None and message.role == "assistant" and native.get("id") is not None:
            needed = _reasoning_before(position, message_before, reasons)
            is_lost = needed is not None and needed not in sent
            if is_lost and native.get("type", "message") in batching.reasoned_types:
                kept.append(entry.with_message(message.without_item_id(LOST_REASONING_NOTE)))
                repairs.append(Repair(position, LOST_REASONING_NOTE))
                continue
        kept.append(entry)
    return (kept, repairs) if repairs else (entries, [])


def _reasoning_before(
    position: int, message_before: Callable[[int], tuple[int, Message] | None], reasons: dict[int, int | None]
) -> int | None:
    """Return where the reasoning is after which the model said an item; None if there is none."""
    items, needed = [position], None
    while (found := message_before(items[-1])) is not None and found[1].role == "assistant":
        before, message = found
        if message.outline.is_reasoning_only or before in reasons:
            needed = before if message.outline.is_reasoning_only else reasons[before]
            break
        items.append(before)
    reasons.update(dict.fromkeys(items, needed))
    return needed


JOINED_SYSTEM_NOTE = "joined system text with the one before it: a compaction has made them neighbors"


def with_placed_system_text(entries: list[Entry], batching: Batching) -> tuple[list[Entry], list[Repair]]:
    """Return a view in which system text that a compaction has moved stands where its provider accepts it.

    A compaction leaves it at the beginning. It is sent as one message after the next messages of the user, where it is
    still system text; the place stays the same while the conversation grows.
    """
    if not batching.system_follows_user or not any(map(_is_system_text, entries)):
        return entries, []
    placed: list[Entry] = []
    moved: list[Entry] = []
    repairs: list[Repair] = []
    for index, entry in enumerate(entries):
        before = entries[index - 1] if index else None
        if _is_system_text(entry) and (moved or _is_displaced(entry, before)):
            moved.append(entry)
            continue
        if moved and _may_follow_system_text(placed, entry):
            placed.append(_joined_system_text(moved, repairs))
            moved = []
        placed.append(entry)
    if moved and _may_follow_system_text(placed, None):
        placed.append(_joined_system_text(moved, repairs))
        moved = []
    # Without such a place, all of it stays where it is.
    is_same = moved or (len(placed) == len(entries) and all(map(operator.is_, placed, entries)))
    return (entries, []) if is_same else (placed, repairs)


def _is_system_text(entry: Entry) -> bool:
    native = entry.message.native
    return entry.message.role == "system" and native is not None and native.get("role") == "system"


def _is_displaced(entry: Entry, before: Entry | None) -> bool:
    """Return whether what came before system text is not sent any more, or something else comes before it."""
    return before is None or before.position is None or before.position + 1 != entry.position


def _may_follow_system_text(before: Sequence[Entry], entry: Entry | None) -> bool:
    """Return whether system text may stand between entries and the next one; None is the end."""
    if not before or before[-1].message.role not in _ANSWERED_ROLES:
        return False
    return entry is None or entry.message.role == "assistant"


def _joined_system_text(entries: Sequence[Entry], repairs: list[Repair]) -> Entry:
    """Return system texts as one; the settings of a later one apply."""
    first = entries[0]
    if len(entries) == 1:
        return first
    repairs += [Repair(entry.position, JOINED_SYSTEM_NOTE) for entry in entries[1:]]
    native: dict[str, object] = {}
    for entry in entries:
        native |= entry.message.native or {}
    message = replace(
        first.message,
        parts=tuple(part for entry in entries for part in entry.message.parts),
        native=native,
        decoded=(),
        extra_fields_json="".join(entry.message.extra_fields_json for entry in entries),
    )
    return first.with_message(message)


def _from_last_beginning(entries: Sequence[Entry], repairs: list[Repair]) -> Sequence[Entry]:
    """Return the entries from the last one on that must be the first."""
    start = max((index for index, entry in enumerate(entries) if entry.message.outline.is_first), default=0)
    note = "left out what the provider's compaction after it stands for"
    repairs += [Repair(entry.position, note) for entry in entries[:start]]
    return entries[start:]


def _without_early_ends(entries: Sequence[Entry], repairs: list[Repair]) -> list[Entry]:
    """Return entries without those that must be the last and are not."""
    kept: list[Entry] = []
    for entry in entries[:-1]:
        if entry.message.outline.is_final:
            repairs.append(Repair(entry.position, "removed an item that nothing may follow"))
        else:
            kept.append(entry)
    return [*kept, *entries[-1:]]


def _without_blanks(entries: Iterable[Entry], batching: Batching, repairs: list[Repair]) -> Iterator[Entry]:
    for entry in entries:
        message = entry.message
        if message.outline.has_no_empty_text or (batching.is_itemized and message.outline.is_reasoning_only):
            yield entry
            continue
        filled = message.with_parts(
            tuple(
                _without_blank_blocks(part) if isinstance(part, ToolResult) else part
                for part in message.parts
                if not (isinstance(part, Text) and part.is_blank)
            )
        )
        if filled.outline.has_no_empty_text:
            repairs.append(Repair(entry.position, "removed an empty text"))
            yield entry.with_message(filled)
        elif filled.parts:
            repairs.append(Repair(entry.position, "removed a turn that holds only reasoning"))
        else:
            what = "; ".join(message.repair_notes) or f"removed an empty {message.role} turn"
            repairs.append(Repair(entry.position, what))


def _without_blank_blocks(result: ToolResult) -> ToolResult:
    content = tuple(
        part for part in result.content if not (isinstance(part, Text) and part.native is not None and part.is_blank)
    )
    return result if len(content) == len(result.content) else result.with_content(content)


def _with_valid_ends(entries: list[Entry], repairs: list[Repair], pending: Sequence[str]) -> list[Entry]:
    """Return entries that begin with a user message and end with a message that the model can answer."""
    if entries and entries[0].message.role == "user" and entries[-1].message.role in _ANSWERED_ROLES:
        return entries  # as most do
    first = next((index for index, entry in enumerate(entries) if entry.message.role != "system"), None)
    if first is None:
        return entries
    last = next(entry.message.role for entry in reversed(entries) if entry.message.role != "system")
    if not pending and last == "assistant" and not _is_paused(entries):
        repairs.append(Repair(None, "put a user message after the last assistant turn"))
        entries = [*entries, CLOSING]
    if entries[first].message.role != "user" and not entries[first].message.outline.is_fixed:
        repairs.append(Repair(None, "put a user message before the first assistant turn"))
        entries = [*entries[:first], OPENING, *entries[first:]]
    return entries
