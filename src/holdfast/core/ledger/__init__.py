"""What a conversation must not forget: names, files, actions and constraints, extracted by rule, with their sources."""
