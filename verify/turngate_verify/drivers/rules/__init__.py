"""Rules for Hypothesis: what callers, subscribers, runners, the store and the loop do, in any order."""
