"""Rules for Hypothesis: what callers, runners, stores and readers may do, in any order."""
