"""The commands by their names: those of the product, and those that other packages register.

A package registers commands by an entry point of the group `turngate.commands`: a dict with the name of each
command, and a tuple of what it does, where it is (`module:name` of a click command) and which extra it needs.
The module of the dict has to do with the standard library, for ``turngate --help`` lists the commands in an
environment in which no extra is installed.
"""

from __future__ import annotations

from typing import NamedTuple

from turngate.cli.endings import BAD_INPUT

ABOUT = "One turn at a time, exact cancels, one RunComplete per run: serve an agent, and check the promises."


class Registered(NamedTuple):
    """A command: what it does, where it is (`module:name`), and the extra that it needs."""

    summary: str
    target: str
    extra: str


OWN = {
    "serve": Registered(
        "Serve an agent over HTTP, with a live page. Without TARGET, serve a demonstration.",
        "turngate.cli.serve:serve",
        "server",
    ),
    "chat": Registered(
        "Talk to a served agent in the terminal: URL is where the server is.",
        "turngate.cli.chat:chat",
        "client",
    ),
}


def registered() -> dict[str, Registered]:
    """Return every command by its name."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and needed by some commands only

    commands = dict(OWN)
    for found in entry_points(group="turngate.commands"):
        commands |= {name: Registered(*command) for name, command in found.load().items()}
    return commands


def find(name: str) -> Registered | None:
    """Return a command, None if there is none of that name."""
    return OWN.get(name) or registered().get(name)


def answer(arguments: list[str]) -> tuple[str, int] | None:
    """Return what to print and the exit code, if no command is called; None if one is."""
    if not arguments:
        return help_text(), BAD_INPUT
    if arguments[0] in {"-h", "--help"}:
        return help_text(), 0
    if arguments[0] == "--version":
        from importlib.metadata import version  # noqa: PLC0415 - as above

        return f"turngate, version {version('turngate')}\n", 0
    return None


def help_text() -> str:
    """Return what ``turngate --help`` prints."""
    import shutil  # noqa: PLC0415 - needed only here
    import textwrap  # noqa: PLC0415 - as above

    width = min(max(shutil.get_terminal_size().columns, 40), 110)

    def fill(text: str, start: str = "  ", indent: int = 2) -> str:
        return textwrap.fill(text, width, initial_indent=start.ljust(indent), subsequent_indent=" " * indent)

    commands = registered()
    column = max(map(len, commands)) + 4
    extras: dict[str, list[str]] = {}
    for name, command in commands.items():
        extras.setdefault(command.extra, []).append(name)
    lines = [
        "Usage: turngate [OPTIONS] COMMAND [ARGS]...",
        "",
        fill(ABOUT),
        "",
        "Options:",
        "  --version   Show the version and exit.",
        "  -h, --help  Show this message and exit.",
        "",
        "Commands:",
        *(fill(command.summary, f"  {name}", column) for name, command in commands.items()),
        "",
        "Extras:",
        *(fill(f"turngate[{extra}] for {', '.join(names)}") for extra, names in extras.items()),
        f"  pip install 'turngate[{','.join(extras)}]'",
    ]
    return "\n".join(lines) + "\n"


def what_is_missing(package: ModuleNotFoundError, name: str) -> str:
    """Say what to install for a command that cannot be imported, or that there is no such command."""
    command = find(name)
    if command is None:
        kind = "option" if name.startswith("-") else "command"
        return f"there is no {kind} {name!r}; turngate --help lists them all"
    return (
        f"turngate {name} needs the extra {command.extra!r} (the package {package.name} is missing); "
        f"install it with: pip install 'turngate[{command.extra}]'"
    )
