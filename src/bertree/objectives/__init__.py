"""Hidden states -> losses. A loss is a sum and a count; the loop divides."""
