"""The public names of memory across conversations: daily notes, context boards, and the agent that maintains a board.

A session with `CompactionOptions(memory=DailyMemory(folder))` writes a note whenever messages leave the model's view.
"""

from holdfast.core.memory.board import Board, BoardNote
from holdfast.core.memory.notes import DailySection
from holdfast.session.memory.board_file import ContextBoard, Repository, repository_of
from holdfast.session.memory.consolidation import ConsolidationResult, RemAgent
from holdfast.session.memory.daily import DailyMemory, MemorySearchResult
from holdfast.session.memory.search_tool import MemorySearchTool

__all__ = [
    "Board",
    "BoardNote",
    "ConsolidationResult",
    "ContextBoard",
    "DailyMemory",
    "DailySection",
    "MemorySearchResult",
    "MemorySearchTool",
    "RemAgent",
    "Repository",
    "repository_of",
]
