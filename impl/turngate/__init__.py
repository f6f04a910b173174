"""A dispatcher for agent servers: one turn at a time per session, exactly one RunComplete per run."""
