"""A closed world: a loop with time of its own, runners and stores that do as they are told, a monitor."""
