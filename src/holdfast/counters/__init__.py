"""Vocabularies and the table of models: facts about models that the core needs and cannot compute."""
