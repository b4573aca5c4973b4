"""Facts about a session: what is known of it besides its log, such as how far somebody has read it.

They stand among all other facts, under keys that name the session at their end, and go when it is deleted: another
conversation may have the same name, and would be taken for the one that was read.
"""

from typing import Literal, TypeAlias

SessionValueKind: TypeAlias = Literal["memory", "board", "consolidated"]
_PLAIN_KINDS = ("memory", "board")
_QUALIFIED_KINDS = ("consolidated",)
"""Of which there is one for each of something else, whose name holds no colon."""


def session_value_key(session: str, kind: SessionValueKind, qualifier: str = "") -> str:
    """Return the key of a fact about a session; `within` names what else it is about, and holds no colon."""
    return f"{kind}:{qualifier}:{session}" if qualifier else f"{kind}:{session}"


def is_session_value_key(key: str, session: str) -> bool:
    """Return whether a fact is about a session."""
    kind, _, rest = key.partition(":")
    return (kind in _PLAIN_KINDS and rest == session) or (
        kind in _QUALIFIED_KINDS and rest.partition(":")[2] == session
    )
