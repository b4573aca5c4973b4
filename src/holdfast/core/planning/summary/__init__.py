"""A model's summary of a span: what it is shown, what it is asked, and whether what it wrote may count."""
