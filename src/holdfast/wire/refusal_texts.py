"""The words in which providers refuse, as patterns, each seen in the wild.

`limit` and `size` name the numbers where a text has them. All are matched without regard to case.
"""

_L, _S = r"(?P<limit>[\d,]+)", r"(?P<size>[\d,]+)"

RATE_LIMIT_PATTERNS = (
    r"rate.?limit",
    r"(tokens|requests) per (minute|day|hour)",
    r"\b[TR]PM\b",
    r"too many requests",
    r"quota",
    r"overloaded",
    r"resource.?exhausted",
)
OUTPUT_CAP_PATTERNS = (
    rf"input length and `max_tokens` exceed context limit: {_S} \+ [\d,]+ > {_L}",
    rf"you requested [\d,]+ output tokens and your prompt contains (?:at least )?{_S} input tokens",
    r"max_tokens must be at least 1, got -\d+",
    rf"max_tokens: [\d,]+ > {_L}, which is the maximum allowed number of output tokens",
    rf"max_tokens is too large: [\d,]+\. This model supports at most {_L}",
    rf"max_tokens.{{0,40}}(?:too large|exceeds|must be (?:less|at most|<=?))\D*{_L}?",
)
MALFORMED_PATTERNS = (
    r"must be followed by",
    r"must be a response to a prece+ding message",
    r"insufficient tool messages",
    r"tool_use(_id)?` (ids|found)",
    r"tool_result` block|tool_result block\(s\)",
    r"text content blocks must be non-empty|must have non-empty content",
    r"function (call|response) (turn|parts)",
    r"thought_signature|thinking\.signature|`thinking`|redacted_thinking|reasoning_content",
    r"No tool (call|output) found for function call",
    r"without its required|Expected an ID that begins|Items are not persisted",
    r"Unexpected role|Expected last role|tool call id|Duplicate tool call",
    r"Not the same number of function calls|More tool responses than tool calls",
    r"Conversation must start|System prompt must have|either content or tool_calls",
    r"must alternate between|toolResult blocks|tool result blocks cannot be provided",
    r"toolConfig field must be defined|server_tool_use",
    r"assistant message prefill|cache_control",
    r"invalid_request_message_order|invalid_function_call",
    r"expected a string, got null",
)
OVERFLOW_PATTERNS = (
    rf"maximum context length is {_L} tokens\. However, your messages resulted in {_S} tokens",
    rf"maximum context length is {_L} tokens\. However, you requested (?:about )?{_S} tokens",
    rf"configured limit of {_L} tokens\. Your messages resulted in {_S} tokens",
    rf"prompt is too long: {_S} tokens > {_L} maximum",
    rf"input token count \({_S}\) exceeds the maximum number of tokens allowed \({_L}\)",
    rf"Prompt contains {_S} tokens[^\d]*too large for model with {_L} maximum context length",
    rf"prompt tokens \({_S}\) exceed model maximum \({_L}\)",
    rf"maximum prompt length is {_L} but the request contains {_S} tokens",
    rf"request \({_S} tokens\) exceeds the available context size \({_L} tokens\)",
    rf"first {_S} tokens when context the overflows[^\d]*context length of only {_L} tokens",
    rf"Current length is {_S} while limit is {_L}",
    rf"prompt token count of {_S} exceeds the limit of {_L}",
    rf"exceeded model token limit: {_L} \(requested: {_S}\)",
    rf"truncating input prompt limit={_L} prompt={_S}",
    rf"maximum context length is {_L} tokens",
    r"exceeds? the (?:available )?context (?:size|window)|context window exceeds limit",
    r"prompt is too long|input is too long for requested model|input length exceeds context limit",
    r"reduce the length of the messages",
    r"tokens to keep from the initial prompt is greater than the context length",
    r"request_too_large|request exceeds the maximum size",
    r"string too long",
)
OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "model_max_prompt_tokens_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "request_too_large",
        "string_above_max_length",
    }
)
