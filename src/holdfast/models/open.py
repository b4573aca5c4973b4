"""A writer by its name."""

from holdfast.errors import SettingsError
from holdfast.models.base import Writer
from holdfast.models.embedded.weights import NAME as EMBEDDED


def writer_for(model: str) -> Writer:
    """Return who writes: `embedded`, an endpoint's model as `http://…/v1#name`, or any name that pydantic-ai knows."""
    if model == EMBEDDED:
        from holdfast.models.embedded.server import EmbeddedWriter  # noqa: PLC0415 - an extra that few need

        return EmbeddedWriter()
    if model.startswith(("http://", "https://")):
        from holdfast.models.openai_compatible import ChatWriter  # noqa: PLC0415 - as above

        url, _, name = model.partition("#")
        if not name:
            raise SettingsError("model", f"{model!r} does not say which model: append its name as #name")
        return ChatWriter(url, name)
    from holdfast.models.pydantic_ai import AgentWriter  # noqa: PLC0415 - as above

    return AgentWriter(model)
