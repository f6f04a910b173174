"""The commands by their names, what each does and which extra it needs; standard library only.

``turngate --help`` and ``turngate --version`` are answered from here, so that they work in an environment in
which no extra is installed.
"""

from __future__ import annotations

from turngate.cli.endings import BAD_INPUT

COMMANDS = {
    "verify": "Check everything: the main job.",
    "explore": "Explore the model exhaustively within bounds.",
    "prove": "Prove every property, for any number of prompts, cancels and sessions.",
    "trace": "Check a recorded history: JSON lines in FILE, '-' for standard input.",
    "conform": "Check another dispatcher behind the port: TARGET is module:Class or path.py:Class.",
    "vectors": "Write test vectors to FILE, JSON lines; without it, or with '-', to standard output.",
    "schedules": "Execute small scenarios on the real dispatcher in every order there is.",
    "faults": "Spoil scenarios on the real dispatcher once at every point, in every way.",
    "diagrams": "Write the diagrams of the lifecycle, the session, the races and the known-bad designs.",
    "serve": "Serve an agent over HTTP, with a live page; a demonstration without TARGET.",
    "chat": "Talk to a served agent in the terminal: URL is where the server is.",
    "oracles": "Compare the explorer with SPIN and TLC, number by number.",
}
"""What each command does. Its module has its name, and is imported when the command is called."""

ABOUT = "Check the promises of Turngate: one turn at a time, exact cancels, one RunComplete per run."

_EXTRAS = {"serve": "server", "chat": "client"}
"""The extra that a command needs, if it is not `verify`."""


def answer(arguments: list[str]) -> tuple[str, int] | None:
    """Return what to print and the exit code, if no command is called; None if one is."""
    if not arguments:
        return help_text(), BAD_INPUT
    if arguments[0] in {"-h", "--help"}:
        return help_text(), 0
    if arguments[0] == "--version":
        from importlib.metadata import version  # noqa: PLC0415 - it takes a while, and is needed only here

        return f"turngate, version {version('turngate')}\n", 0
    return None


def help_text() -> str:
    """Return what ``turngate --help`` prints."""
    import shutil  # noqa: PLC0415 - as above
    import textwrap  # noqa: PLC0415 - as above

    width = min(max(shutil.get_terminal_size().columns, 40), 110)
    commands = [
        textwrap.fill(
            sentence,
            width,
            initial_indent=f"  {name:<{max(map(len, COMMANDS))}}  ",
            subsequent_indent=" " * (max(map(len, COMMANDS)) + 4),
        )
        for name, sentence in COMMANDS.items()
    ]
    extras = "serve needs turngate[server], chat needs turngate[client], the others need turngate[verify]:"
    lines = [
        "Usage: turngate [OPTIONS] COMMAND [ARGS]...",
        "",
        textwrap.fill(ABOUT, width, initial_indent="  ", subsequent_indent="  "),
        "",
        "Options:",
        "  --version   Show the version and exit.",
        "  -h, --help  Show this message and exit.",
        "",
        "Commands:",
        *commands,
        "",
        "Extras:",
        textwrap.fill(extras, width, initial_indent="  ", subsequent_indent="  "),
        "  pip install 'turngate[server,client,verify]'",
    ]
    return "\n".join(lines) + "\n"


def what_is_missing(package: ModuleNotFoundError, command: str) -> str:
    """Say what to install for a command that cannot be imported, or that there is no such command."""
    if command not in COMMANDS:
        kind = "option" if command.startswith("-") else "command"
        return f"there is no {kind} {command!r}; turngate --help lists what there is"
    extra = _EXTRAS.get(command, "verify")
    return (
        f"turngate {command} needs the extra {extra!r} (the package {package.name} is missing); "
        f"install it with: pip install 'turngate[{extra}]'"
    )
