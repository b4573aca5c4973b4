"""HTTP/1.1 as uvicorn reads it with httptools, for clients that offer another protocol, or know only HTTP/1.0.

Java's own HTTP client adds `Upgrade: h2c` to its first request. A server may ignore that and answer in HTTP/1.1, but
the parser takes what follows the headers for the other protocol: the request would arrive without its body.

HTTP/1.0 has no chunks: such a client would take their sizes for a part of the answer.
"""

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

OFFER_HEADERS = frozenset({b"upgrade", b"http2-settings"})
"""What an offer consists of, beside the words of `Connection` that name them."""


class _CycleOfHttp10(RequestResponseCycle):
    """A request of HTTP/1.0: an answer whose length is not known ends with its connection."""

    _has_length = False

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self.chunked_encoding = None if self._has_length else False
        elif message["type"] == "http.response.body" and not self._has_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class HttpProtocol(HttpToolsProtocol):
    """Reads a request with an offer as if it had none. That of a WebSocket stays: the application refuses it."""

    _is_offer = False
    """Whether the request that is being read has an offer."""

    def on_message_begin(self) -> None:
        """Begin to read a request."""
        self._is_offer = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the application, unless the request is read again."""
        if self.parser.should_upgrade():
            offered = [value.lower() for name, value in self.headers if name == b"upgrade"]
            self._is_offer = bool(offered) and b"websocket" not in offered
        if not self._is_offer:
            super().on_headers_complete()
            if self.cycle and self.scope["http_version"] == "1.0":
                self.cycle.__class__ = _CycleOfHttp10  # its task has not begun

    def on_message_complete(self) -> None:
        """Tell the application that it has the whole body."""
        if not self._is_offer:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Read what has arrived."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_offer:
                self._read_without_offer(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _read_without_offer(self, rest: bytes) -> None:
        """Read a request again from its beginning; `rest` is what has arrived after its headers."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                words = [word.strip() for word in value.split(b",")]
                value = b", ".join(word for word in words if word.lower() not in OFFER_HEADERS)  # noqa: PLW2901
            if name not in OFFER_HEADERS and (value or name != b"connection"):
                lines.append(b"%s: %s" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)
