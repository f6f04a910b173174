"""What a team's pipeline reads: JUnit, GitHub annotations, a Markdown summary, results by requirement."""
