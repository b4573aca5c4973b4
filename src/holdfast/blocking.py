"""The public names for synchronous code: a session whose methods wait, for threads and scripts.

`Session` has the methods of `holdfast.Session`, without `async` and `await`.
"""

from holdfast.session.blocking import BlockingDelegate as Delegate
from holdfast.session.blocking import BlockingSession as Session
from holdfast.session.blocking import BlockingTool as ModelTool

__all__ = ["Delegate", "ModelTool", "Session"]
