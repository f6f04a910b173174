"""What makes things happen in the world: lockstep, rules, schedules, faults, and sabotage."""
