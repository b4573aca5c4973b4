"""What stands inside the items of OpenAI's Responses: words, images, files and refusals."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.conversation.messages import Content, Media, Opaque, Part, Role, Text, Trust
from holdfast.wire.media import data_tokens, image_source, image_tokens
from holdfast.wire.reading import InputPath, extra_fields, is_list, is_mapping, json_type_name

TEXT_BLOCK_TYPES = frozenset({"input_text", "output_text", "text"})
MEDIA_BLOCK_TYPES = frozenset({"input_image", "input_file", "input_audio"})
ENCRYPTED_CHARS_PER_TOKEN = 4
"""Characters of encrypted content for one token, as for signatures."""
_TEXT_FIELDS = frozenset({"type", "text"})
_BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(TEXT_BLOCK_TYPES, _TEXT_FIELDS),
    "input_image": frozenset({"type", "image_url", "file_id", "detail"}),
    "input_file": frozenset({"type", "file_data", "file_id", "file_url", "filename"}),
    "input_audio": frozenset({"type", "input_audio"}),
}


def encrypted_tokens(value: object) -> int:
    """Return what encrypted content is likely to cost."""
    return len(value) // ENCRYPTED_CHARS_PER_TOKEN if isinstance(value, str) else 0


def decode_blocks(value: object, trust: Trust, place: InputPath, path: str) -> tuple[Content, ...]:
    """Return the parts of a content or an output."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (Text(value, trust),) if value else ()
    if not is_list(value):
        place.fail(path, f"must be a string or a list of parts, not {json_type_name(value)}")
    return tuple(_block(block, trust, place, f"{path}[{number}]") for number, block in enumerate(value))


def _block(value: object, trust: Trust, place: InputPath, path: str) -> Content:
    block = place.require_mapping(value, path, "an object with a type")
    kind = place.require_text(block.get("type"), f"{path}.type")
    if kind in TEXT_BLOCK_TYPES:
        return Text(place.require_text(block.get("text"), f"{path}.text"), trust, block)
    if kind == "refusal":
        return Opaque(kind, place.require_text(block.get("refusal"), f"{path}.refusal"), trust, block)
    if kind == "input_image":
        return Media("image", trust, image_tokens(block.get("detail")), block)
    if kind == "input_file":
        return Media("document", trust, data_tokens(block.get("file_data")), block)
    if kind == "input_audio" and is_mapping(audio := block.get("input_audio")):
        return Media("audio", trust, data_tokens(audio.get("data")), block)
    if kind == "encrypted_content":
        return Opaque(kind, "", trust, block, encrypted_tokens(block.get(kind)))
    return Opaque(kind, place.json_text(block, path), trust, block)


def block_extra_fields(blocks: object) -> str:
    """Return everything of blocks that is sent and that no part stands for, as JSON text."""
    if not is_list(blocks):
        return ""
    return "".join(_block_extra_fields(block) for block in blocks if is_mapping(block))


def _block_extra_fields(block: Mapping[str, Any]) -> str:
    known = _BLOCK_FIELDS.get(str(block.get("type")))
    if known is None or block.keys() <= known:
        return ""
    # Every output has an empty list of annotations; it costs nothing.
    told = {key: value for key, value in block.items() if value not in (None, [])}
    return extra_fields(told, known)


def encode_content(parts: Iterable[Part], original: object, role: Role) -> object:
    """Return content as a bare string where it was one or can be one, else as a list of blocks."""
    inline = [part for part in parts if isinstance(part, Text | Media | Opaque)]
    if not is_list(original) and all(isinstance(part, Text) and part.native is None for part in inline):
        return "\n".join(part.text for part in inline if isinstance(part, Text))
    return [_encode_block(part, role) for part in inline]


def _encode_block(part: Content, role: Role) -> Mapping[str, Any]:
    if isinstance(part, Text):
        if is_mapping(part.native):
            return {**part.native, "text": part.text} if part.is_edited else part.native
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}
    if isinstance(part, Media) and not _is_responses_block(part.native):
        return _foreign_media(part)
    return part.native if is_mapping(part.native) else {"type": "input_text", "text": f"[{part.kind}]"}


def _is_responses_block(native: object) -> bool:
    return is_mapping(native) and native.get("type") in MEDIA_BLOCK_TYPES


def _foreign_media(media: Media) -> Mapping[str, Any]:
    source = image_source(media)
    if source is None:
        return {"type": "input_text", "text": f"[{media.kind} not carried over]"}
    kind, data = source
    return {"type": "input_image", "image_url": data if kind == "url" else f"data:{kind};base64,{data}"}
