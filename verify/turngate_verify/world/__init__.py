"""A closed world: a loop with time of its own, scripted runners and stores, and a monitor."""
