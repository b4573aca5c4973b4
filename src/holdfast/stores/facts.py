"""Facts about a session: what is known of it besides its log, such as how far somebody has read it.

They stand among all other facts, under keys that name the session at their end, and go when it is deleted: another
conversation may have the same name, and would be taken for the one that was read.
"""

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["memory", "board", "consolidated"]
_KINDS = ("memory", "board")
_KINDS_WITHIN = ("consolidated",)
"""Of which there is one for each of something else, whose name holds no colon."""


def fact_about(session: str, kind: Kind, within: str = "") -> str:
    """Return the key of a fact about a session; `within` names what else it is about, and holds no colon."""
    return f"{kind}:{within}:{session}" if within else f"{kind}:{session}"


def is_about(key: str, session: str) -> bool:
    """Return whether a fact is about a session."""
    kind, _, rest = key.partition(":")
    return (kind in _KINDS and rest == session) or (kind in _KINDS_WITHIN and rest.partition(":")[2] == session)
