"""The public names of recall, which returns messages that are no longer in view.

`Session.recall` takes a `RecallQuery` or a text and returns a `RecallAnswer`. `Session.recall_tool` offers the same to
a model as a tool. `Session.artifacts` lists large tool results.
"""

from holdfast.core.recall.answer import Excerpt, RecallAnswer
from holdfast.core.recall.artifacts import Artifact
from holdfast.core.recall.query import RecallQuery
from holdfast.session.tools import ModelTool

__all__ = ["Artifact", "Excerpt", "ModelTool", "RecallAnswer", "RecallQuery"]
