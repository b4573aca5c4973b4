"""What of a talk stays whole when it is folded: the turns that say most in the fewest tokens.

Work leaves names, files and commands, which a ledger holds. Talk leaves what was said, and any turn may hold the one
fact that is asked for later. Rare words, names and numbers are what such facts are made of; a question holds none.
Where one side says little and the other much, what the one says counts for more. All of it is read off the turns
themselves, those that stood whole until now and those that an earlier fold has quoted.
"""

import math
import re
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.view import Entry
from holdfast.core.planning.summary.frames import neutralize_frames

NAME_FACTOR = 3.0
"""What a name or a number counts for beside another word that is as rare."""
QUESTION_COST = 6.0
BASE_TOKENS = 10
"""A turn costs this much besides its words: very short ones say little."""
MAX_ROLE_FACTOR = 4.0
MIN_CHAT_SHARE = 0.8
"""Where less than this is talk, it is work."""
MIN_NAME_CHARS = 3
TURN_STEM_CHARS = 6
"""Words that begin alike so far count as one."""
_TOKEN = re.compile(r"[^\W_]+|[.!?:\n\[“\"]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def chat_share(entries: Sequence[Entry]) -> float:
    """Return which share of the text of messages is talk, and not calls or what tools gave back."""
    talk = work = 0
    for entry in entries:
        message = entry.message
        talk += len(message.text)
        if uses_tools(message):
            work += sum(len(result.text) for result in message.results)
            work += sum(len(call.name) + len(call.arguments) for call in message.calls)
    return talk / max(1, talk + work)


def uses_tools(message: Message) -> bool:
    """Return whether a message calls for something or answers that."""
    return bool(message.outline.call_ids or message.outline.result_ids)


def chat_scale(share: float) -> float:
    """Return how much of what a talk may keep a conversation keeps: all of it for nothing but talk, none for work."""
    return max(0.0, (share - MIN_CHAT_SHARE) / (1 - MIN_CHAT_SHARE))


def is_quotable(entry: Entry) -> bool:
    """Return whether a turn can stand among others' words: nothing but words, and none that speak as somebody else."""
    message = entry.message
    if entry.position is None or message.role not in {"user", "assistant"} or uses_tools(message):
        return False
    if message.role == "user":
        # What memory or another agent has put here is no word of the user's.
        return message.is_prompt and not (message.is_task or message.is_from_memory)
    return bool(message.text.strip()) and neutralize_frames(message.text) == message.text


def most_informative(entries: Sequence[Entry], allowance: int, price: Callable[[Entry], int]) -> list[Entry]:
    """Return the turns that say most in the fewest tokens, as many as fit, in the order in which they were said."""
    words = [_turn_words(entry.message.text) for entry in entries]
    held = Tally(word for one in words for word in one)
    sizes = [price(entry) for entry in entries]
    factors = _role_factors(entries, sizes)
    worth = [
        factors[entry.message.role] * _information(said, held, len(entries), entry.message.text) / (size + BASE_TOKENS)
        for entry, said, size in zip(entries, words, sizes, strict=True)
    ]
    chosen: dict[str, int] = {}
    for index in sorted(range(len(entries)), key=lambda index: (-worth[index], index)):
        text = entries[index].message.text
        # What says nothing, or nothing that was not said already, is not worth its tokens.
        if worth[index] > 0 and sizes[index] <= allowance and text not in chosen:
            allowance -= sizes[index]
            chosen[text] = index
    return [entries[index] for index in sorted(chosen.values())]


def _information(words: Mapping[str, bool], held: Mapping[str, int], total: int, text: str) -> float:
    """Return how much a turn says: its words by how rare they are, names and numbers above all."""
    said = sum(
        math.log(1 + (total - held[word] + 0.5) / (held[word] + 0.5)) * (NAME_FACTOR if is_name else 1.0)
        for word, is_name in words.items()
    )
    return max(0.0, said - (QUESTION_COST if "?" in text or "？" in text else 0.0))


def _turn_words(text: str) -> dict[str, bool]:
    """Return the words of a turn, each with whether it is a name or a number."""
    found: dict[str, bool] = {}
    is_beginning = True
    for token in _TOKEN.findall(text):
        if not token[0].isalnum():
            is_beginning = True
            continue
        is_name = token[0].isdigit() or (token[0].isupper() and not is_beginning and len(token) >= MIN_NAME_CHARS)
        for word in _word_stems(token):
            found[word] = found.get(word, False) or is_name
        is_beginning = False
    return found


def _word_stems(token: str) -> list[str]:
    """Return a word by its beginning; a run of Chinese, Japanese or Korean as pairs."""
    if _CJK.search(token):
        return [token[index : index + 2] for index in range(max(1, len(token) - 1))]
    return [token.lower()[:TURN_STEM_CHARS]]


def _role_factors(entries: Sequence[Entry], sizes: Sequence[int]) -> Mapping[str, float]:
    """Return what a turn counts for by who says it: the less somebody says in all, the more."""
    said = Tally[str]()
    for entry, size in zip(entries, sizes, strict=True):
        said[entry.message.role] += size
    total = sum(said.values())
    return {role: min(MAX_ROLE_FACTOR, max(1.0, total / (2 * size))) for role, size in said.items() if size}
