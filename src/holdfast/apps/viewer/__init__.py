"""The viewer: pages that show what was said, what the model was sent, and why."""
