"""A bound on the steps of one turn: when it is reached, the model closes with an answer.

Its tools stay in the request, so that the provider's cached prefix stands; they may only not be called any more.
"""

from dataclasses import dataclass

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.settings import ModelSettings

CLOSING_INSTRUCTION = (
    "You have used all {steps} steps of this turn, and no tool can be called any more. Answer now with what you have:"
    " what was done, what was found, and what is still open."
)


@dataclass
class StepLimit(AbstractCapability[object]):
    """Lets a turn take so many steps, and one more to close."""

    max_steps: int

    def get_model_settings(self):  # noqa: ANN201 - a function of the run, as pydantic-ai wants it
        """Forbid tools in the closing step."""
        return self._settings

    def get_instructions(self):  # noqa: ANN201 - as above
        """Say so to the model."""
        return self._instructions

    def _settings(self, ctx: RunContext[object]) -> ModelSettings:
        return ModelSettings(tool_choice="none") if self._is_over(ctx) else ModelSettings()

    def _instructions(self, ctx: RunContext[object]) -> str | None:
        return CLOSING_INSTRUCTION.format(steps=self.max_steps) if self._is_over(ctx) else None

    def _is_over(self, ctx: RunContext[object]) -> bool:
        return ctx.usage.requests >= self.max_steps
