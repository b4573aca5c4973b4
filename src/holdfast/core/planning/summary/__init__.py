"""A model's summary of a span: the input of the summarizer, its prompt, and the check of its answer."""
