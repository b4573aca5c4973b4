"""What a conversation must not forget: names, files, work and wishes, extracted by rule, with their sources."""

from holdfast.core.history.ledger.ledger import Ledger
from holdfast.core.history.ledger.names import HEADING, Item, pack
from holdfast.core.history.ledger.rendering import render

__all__ = ["HEADING", "Item", "Ledger", "pack", "render"]
