"""Images and documents: where their data is in each format, and what they are likely to cost."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.core.conversation.messages import Media
from holdfast.wire.json_reader import is_mapping


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


def image_tokens(detail: object = None) -> int:
    """Return what an image is likely to cost."""
    return SMALL_IMAGE_TOKENS if detail == "low" else IMAGE_TOKENS


def data_tokens(data: object) -> int:
    """Return what base64 data is likely to cost."""
    size = len(data) if isinstance(data, str) else 0
    return max(IMAGE_TOKENS, size // BASE64_PER_TOKEN)


def image_source(media: Media) -> tuple[str, str] | None:
    """Return an image as `("url", address)` or `(media type, base64 data)`; None if it is neither."""
    block = media.native
    if isinstance(block, PromptPiece):
        block = block.items[block.item_index]
    if media.kind != "image" or not is_mapping(block):
        return None
    if is_mapping(source := block.get("source")):
        return _from_source(source)
    if is_mapping(inline := block.get("inlineData")):
        return (
            (str(inline.get("mimeType", "image/png")), inline["data"]) if isinstance(inline.get("data"), str) else None
        )
    if is_mapping(file := block.get("fileData")):
        return ("url", file["fileUri"]) if isinstance(file.get("fileUri"), str) else None
    if (kind := block.get("kind")) in {"image-url", "binary"}:
        return _from_item(block, str(kind))
    image = block.get("image_url")
    url = image.get("url") if is_mapping(image) else image
    if not isinstance(url, str):
        return None
    if url.startswith("data:") and ";base64," in url:
        media_type, _, data = url[5:].partition(";base64,")
        return media_type, data
    return "url", url


def _from_source(source: Mapping[str, Any]) -> tuple[str, str] | None:
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return "url", source["url"]
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return str(source.get("media_type", "image/png")), source["data"]
    return None


def _from_item(item: Mapping[str, Any], kind: str) -> tuple[str, str] | None:
    if kind == "image-url":
        return ("url", item["url"]) if isinstance(item.get("url"), str) else None
    if not isinstance(item.get("data"), str):
        return None
    # pydantic-ai uses the URL-safe alphabet; other formats want the standard one.
    return str(item.get("media_type") or "image/png"), item["data"].replace("-", "+").replace("_", "/")
