"""What a conversation must not forget, extracted by rule."""

from holdfast.core.history.ledger.ledger import Ledger
from holdfast.core.history.ledger.names import HEADING, Item, pack

__all__ = ["HEADING", "Item", "Ledger", "pack"]
