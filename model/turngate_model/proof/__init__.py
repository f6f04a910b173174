"""The unbounded proof: every property, for any number of prompts, cancels and sessions."""
