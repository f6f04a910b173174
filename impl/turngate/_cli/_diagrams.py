"""``turngate diagrams``."""
import click


@click.command()
def diagrams() -> int:
    """Write diagrams."""
    return 3
