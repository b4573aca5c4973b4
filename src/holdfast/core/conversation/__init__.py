"""What was said."""
