"""Messages, and the rules for cutting, repairing, counting and shortening them."""
