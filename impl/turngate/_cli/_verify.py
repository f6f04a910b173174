"""``turngate verify``: the main job."""
import click


@click.command()
def verify() -> int:
    """Check everything."""
    return 3
