"""The drivers try the real dispatcher: lockstep, rules, schedules, faults. They must find every sabotage."""
