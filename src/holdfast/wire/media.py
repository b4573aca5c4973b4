"""Images and documents: where their data is in each format, and what they are likely to cost."""

from collections.abc import Mapping
from re import Match
from typing import Any, Literal, NamedTuple

from holdfast.core.conversation.messages import Media, Opaque, Trust
from holdfast.text import lazy_pattern
from holdfast.wire.json_reader import InputPath, is_mapping


class PromptPiece(NamedTuple):
    """One item of a prompt: pydantic-ai keeps all items of a prompt in one part, and we decode each by itself."""

    part: Mapping[str, Any]
    """The prompt."""
    items: tuple[Any, ...]
    """The item, and the marks next to it that no model sees, such as cache points."""
    item_index: int
    """The index of the item among them."""
    is_first: bool
    """Whether the prompt starts with them."""


IMAGE_TOKENS = 1_600
"""The most that a large image costs at OpenAI and Anthropic."""
SMALL_IMAGE_TOKENS = 85
"""OpenAI's fixed price for an image in low detail."""
BASE64_PER_TOKEN = 60
"""Base64 characters of a document or an audio file for one token; bills show at least as many."""
ENCRYPTED_CHARS_PER_TOKEN = 4
"""Characters of encrypted content for one token."""
_ENCODED_VALUE = lazy_pattern(
    r'(?P<name>"encrypted_\w{1,50}": "|"media_type": "(?!text/)(?P<image>image/)?[^"\\]{0,100}", "data": ")'
    r'(?P<data>[A-Za-z0-9+/_-]{200,}={0,2})(?=")'
)
"""A member of a block whose value is encrypted, or encoded as its media type says."""
_DATA_BLOCK_TYPES = frozenset({"image", "audio", "video", "file", "media"})
_DATA_BLOCK_FIELDS = ("base64", "data", "url", "file_id", "file_uri")


def image_tokens(detail: object = None) -> int:
    """Return what an image is likely to cost."""
    return SMALL_IMAGE_TOKENS if detail == "low" else IMAGE_TOKENS


def encrypted_tokens(value: object) -> int:
    """Return what encrypted content is likely to cost."""
    return len(value) // ENCRYPTED_CHARS_PER_TOKEN if isinstance(value, str) else 0


def opaque_block(kind: str, block: object, trust: Trust, place: InputPath, path: str) -> Opaque:
    """Return a block that only its provider understands; the length stands in its text for what is encoded.

    A provider decodes a page or a document that its own tool has read, so its length in Base64 says little of its cost.
    """
    tokens = 0

    def described(value: Match[str]) -> str:
        nonlocal tokens
        data = value["data"]
        if value["name"].startswith('"encrypted_'):
            tokens += encrypted_tokens(data)
        else:
            tokens += IMAGE_TOKENS if value["image"] else data_tokens(data)
        return f"{value['name']}[{len(data):,} characters]"

    text = _ENCODED_VALUE.sub(described, place.json_text(block, path))
    return Opaque(kind, text, trust, block, encoded_tokens=tokens)


def data_tokens(data: object) -> int:
    """Return what base64 data is likely to cost."""
    size = len(data) if isinstance(data, str) else 0
    return max(IMAGE_TOKENS, size // BASE64_PER_TOKEN)


def is_data_block(block: Mapping[str, Any]) -> bool:
    """Return whether a block is LangChain's own form of an image or a file, which it converts for each provider.

    The data is a member of the block itself, such as `{"type": "image", "base64": "…", "mime_type": "image/png"}`.
    """
    is_known = block.get("type") in _DATA_BLOCK_TYPES
    return is_known and any(isinstance(block.get(name), str) for name in _DATA_BLOCK_FIELDS)


def data_block_media(block: Mapping[str, Any], trust: Trust) -> Media:
    """Return the part of a block that `is_data_block`."""
    kind = _data_block_kind(block)
    tokens = image_tokens() if kind == "image" else data_tokens(_data_of(block))
    return Media(kind, trust, tokens, block)


def _data_block_kind(block: Mapping[str, Any]) -> Literal["image", "audio", "document"]:
    mime = str(block.get("mime_type"))
    for kind in ("image", "audio"):
        if block["type"] == kind or mime.startswith(f"{kind}/"):
            return kind
    return "document"


def _data_of(block: Mapping[str, Any]) -> object:
    return block.get("base64") or block.get("data")


PDF_TYPE, PDF_NAME = "application/pdf", "document.pdf"


READABLE_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What OpenAI, Anthropic, Mistral and Bedrock read; Gemini reads other types too."""
_OWN_FILES = "https://generativelanguage.googleapis.com/"
"""Where files are that only Google's own models can read."""


def unreadable_image(media: Media) -> str:
    """Return the type or the address of an image that most providers refuse; empty for any other."""
    kind, data = image_source(media) or ("", "")
    if kind == "url":
        scheme = data.partition("/")[0]
        is_public = ":" not in scheme or scheme.lower() in {"https:", "http:"}
        return "" if is_public and not data.startswith(_OWN_FILES) else f"{data:.60}"
    return "" if kind in READABLE_IMAGE_TYPES else kind


def image_source(media: Media) -> tuple[str, str] | None:
    """Return an image as `("url", address)` or `(media type, base64 data)`; None if it is neither."""
    return _source(media.native) if media.kind == "image" else None


def pdf_data(media: Media) -> str | None:
    """Return a PDF as base64 data; None if it is another document, or only an address or an id."""
    source = _source(media.native) if media.kind == "document" else None
    return source[1] if source is not None and source[0] == PDF_TYPE else None


def pdf_name(media: Media) -> str:
    """Return the name of a PDF, as its block has it."""
    block: Mapping[str, Any] = media.native if is_mapping(media.native) else {}
    name = (file if is_mapping(file := block.get("file")) else block).get("filename") or block.get("title")
    return name if isinstance(name, str) and name else PDF_NAME


def pdf_url(media: Media) -> str | None:
    """Return a PDF as a data URL; None if it has no data."""
    data = pdf_data(media)
    return None if data is None else f"data:{PDF_TYPE};base64,{data}"


def _source(block: object) -> tuple[str, str] | None:
    """Return an image or a file as `image_source` does, with its type as providers spell it."""
    found = _spelled_source(block)
    if found is None or found[0] == "url":
        return found
    kind = found[0].partition(";")[0].strip().lower()
    return "image/jpeg" if kind == "image/jpg" else kind, found[1]


def _spelled_source(block: object) -> tuple[str, str] | None:
    if isinstance(block, PromptPiece):
        block = block.items[block.item_index]
    if not is_mapping(block):
        return None
    if is_mapping(source := block.get("source")):
        if source.get("type") == "base64":
            return _if_text(source.get("media_type", "image/png"), source.get("data"))
        return _if_text("url", source.get("url")) if source.get("type") == "url" else None
    if is_mapping(inline := block.get("inlineData")):
        found = _if_text(inline.get("mimeType") or inline.get("mime_type") or "image/png", inline.get("data"))
        return found and (found[0], standard_base64(found[1]))
    if is_mapping(file := block.get("fileData")):
        return _if_text("url", file.get("fileUri") or file.get("file_uri"))
    if block.get("kind") in {"image-url", "binary"} or is_data_block(block):
        found = _if_text(block.get("media_type") or block.get("mime_type") or "image/png", _data_of(block))
        address = block.get("url") or block.get("file_uri")
        return (found[0], standard_base64(found[1])) if found else _if_text("url", address)
    image, file = block.get("image_url"), block.get("file")
    url = image.get("url") if is_mapping(image) else image or (file if is_mapping(file) else block).get("file_data")
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        media_type, _, data = url[5:].partition(";base64,")
        return media_type, data
    return _if_text("url", url)


def standard_base64(data: str) -> str:
    """Return data in the standard alphabet: pydantic-ai and Google's library use the URL-safe one."""
    return data.replace("-", "+").replace("_", "/")


def _if_text(kind: object, data: object) -> tuple[str, str] | None:
    return (str(kind), data) if isinstance(data, str) else None


def image_url(media: Media) -> str | None:
    """Return an image as an address or a data URL; None if it is neither."""
    source = image_source(media)
    if source is None or source[0] == "url":
        return source and source[1]
    return f"data:{source[0]};base64,{source[1]}"
