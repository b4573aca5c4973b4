"""What a program is set up with: settings, where each came from, and what is built from them."""
