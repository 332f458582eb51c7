"""Hidden states -> losses. A loss is a sum and a count: who divides, and by what, is for the loop to say."""
