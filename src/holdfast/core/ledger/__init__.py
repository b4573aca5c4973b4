"""The ledger of a conversation: names, files, actions and constraints, extracted by rule, with their sources."""
