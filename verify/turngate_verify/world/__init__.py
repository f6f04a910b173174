"""A closed world: a loop with virtual time, scripted runners and stores, and a monitor."""
