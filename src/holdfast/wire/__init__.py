"""Provider JSON to messages and back, the rules requests must follow, and what refusals mean."""
