"""Who may see the pages, and who may change something.

The address that `holdfast view` prints has a token. The first request with it gets a cookie that only this server
reads, and the token is void. A change also needs the token of its form, which no other web page can know.
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.apps.serving import AccessDeniedError

MAX_READERS = 64
"""How many browsers are remembered; the oldest is forgotten first."""
NEEDED_KEY = "the token of the control API, whose file the gateway names when it starts, or a key with control = true"
"""What the pages of a gateway need."""


class SignInError(AccessDeniedError):
    """Raised when a request may not be served before its browser signs in."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A browser that has signed in."""

    prefix: str = ""
    """The beginning of the session ids that it sees."""
    may_change: bool = False
    is_valid: Callable[[], bool] = lambda: True
    """Returns whether the token that it has signed in with is still good."""
    csrf_token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)


class ViewerAccess:
    """The browsers that have signed in, by their cookies."""

    def __init__(self, *, may_change: bool = False, identify: Callable[[str], Reader | None] | None = None) -> None:
        """`identify` returns the reader of a lasting token, such as the gateway's."""
        self._may_change = may_change
        self._identify = identify
        self._tokens: set[str] = set()
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        # Cookies do not tell ports apart, so two viewers on one machine need different names.
        self.cookie = f"holdfast-view-{secrets.token_hex(4)}"

    def new_token(self) -> str:
        """Return a token that one browser can sign in with, once."""
        token = secrets.token_urlsafe(32)
        self._tokens.add(token)
        return token

    def sign_in(self, token: str, cookie: str | None = None) -> str:
        """Return the cookie of a new reader; raises `SignInError` if the token is wrong or was used before.

        `cookie` is that of a browser that may have signed in before, and opens the same address again.
        """
        used = next((one for one in self._tokens if hmac.compare_digest(one.encode(), token.encode())), None)
        if used is not None:
            self._tokens.discard(used)
            reader: Reader | None = Reader(may_change=self._may_change)
        else:
            reader = self._identify(token) if self._identify and token else None
        if reader is None and cookie and self._is_signed_in(cookie):
            return cookie
        if reader is None:
            void = "this address was used before, or it is wrong; start the viewer again"
            raise SignInError(403, f"this token is wrong; what you need is {NEEDED_KEY}" if self._identify else void)
        secret = secrets.token_urlsafe(32)
        self._readers[secret] = reader
        while len(self._readers) > MAX_READERS:
            self._readers.popitem(last=False)
        return secret

    def reader_of(self, cookie: str | None) -> Reader:
        """Return who has a cookie; raises `SignInError` if nobody has."""
        if cookie is None or not self._is_signed_in(cookie):
            printed = "this page needs the address that the program printed when it started"
            raise SignInError(401, f"this page needs {NEEDED_KEY}" if self._identify else printed)
        return self._readers[cookie]

    def _is_signed_in(self, cookie: str) -> bool:
        return cookie in self._readers and self._readers[cookie].is_valid()


def is_own_form(reader: Reader, csrf_token: object) -> bool:
    """Return whether a form was made by these pages for this reader."""
    return isinstance(csrf_token, str) and hmac.compare_digest(csrf_token.encode(), reader.csrf_token.encode())
