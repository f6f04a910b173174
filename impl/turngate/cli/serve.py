"""``turngate serve``: an agent behind HTTP, with a live page."""

from __future__ import annotations

import errno
import math
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from turngate import Dispatcher, TurngateError
from turngate.cli.endings import INTERRUPTED
from turngate.cli.targets import is_at_an_address, ledger_at, load_runner, read_token
from turngate.cli.terminal import out
from turngate.cli.workers import Inherited, Workers
from turngate.server import Limits, demonstration
from turngate.server._app import App, backend_of
from turngate.server._security import for_address, is_loopback
from turngate.server._serving import listening
from turngate.server._serving import serve as serve_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate.durable import DurableDispatcher


class Options(NamedTuple):
    """What is asked for on the command line."""

    target: str | None
    host: str
    port: int
    ledger: str | None
    on_death: Literal["fail", "retry"]
    token_file: Path | None
    allow_host: tuple[str, ...]
    allow_origin: tuple[str, ...]
    finish: float
    workers: int
    verbose: bool
    acp: bool
    inherited: str | None

    def announce(self, port: int) -> None:
        """Say what is served, and where."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        about = self.target or "the demonstration agent"
        by = f" by {self.workers} workers" if self.workers > 1 else ""
        out.print(f"turngate serves {about} on http://{name}:{port}/{by} (Ctrl-C ends it)")


def _number_of_seconds(_context: click.Context, _parameter: click.Parameter, given: float) -> float:
    if math.isnan(given):
        raise click.BadParameter("nan is not a number of seconds.")
    return given


@click.command()
@click.argument("target", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8765,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 picks a free one.",
)
@click.option("--ledger", metavar="PATH_OR_DSN", help="Keep runs in an SQLite file or in PostgreSQL.")
@click.option(
    "--on-death",
    default="fail",
    show_default=True,
    type=click.Choice(["fail", "retry"]),
    help="With a ledger: what happens to a turn whose process died.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token that clients must present; required on any address but loopback.",
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="Also answer under this host name; '*' allows any."
)
@click.option(
    "--allow-origin", multiple=True, metavar="ORIGIN", help="Allow calls from pages of this origin."
)
@click.option(
    "--finish",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0),
    callback=_number_of_seconds,
    help="Seconds for runs to finish when the server is stopped; the rest are cancelled.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Processes to start; more than one needs a ledger.",
)
@click.option("--verbose", is_flag=True, help="Log requests (no prompt and no token is ever logged).")
@click.option(
    "--acp",
    is_flag=True,
    help="Serve an editor on the standard streams instead; see turngate serve --acp --help.",
)
@click.option("--inherited", hidden=True)  # what a worker has from its parent
def serve(**options: Any) -> int:
    """Serve an agent over HTTP, with a live page. Without TARGET, serve a demonstration.

    TARGET is module:runner or path.py:runner. SIGTERM ends the server: it refuses new prompts, gives runs in
    flight time to finish, delivers every RunComplete, and exits with 0.
    """
    asked = Options(**options)
    assert not asked.acp, "turngate.cli.entry has served the editor"
    if asked.workers > 1 and asked.ledger is None:
        raise click.UsageError(
            "--workers above 1 needs --ledger: without one, each process would run a turn of the same session"
        )
    app = _app(asked)
    on_start: Callable[[int], object] = asked.announce
    if asked.inherited is not None:
        inherited = Inherited(*map(int, asked.inherited.split(",")))
        listener, on_start = inherited.socket(), inherited.tell
    else:
        listener = _listen(asked)
    if asked.workers > 1:
        with listener:
            port = listener.getsockname()[1]
            workers = Workers(_arguments_of_a_worker(), asked.workers, listener)
            return workers.run(lambda: asked.announce(port))
    try:
        interrupted = serve_app(app, asked.host, verbose=asked.verbose, on_start=on_start, listener=listener)
    except TurngateError as wrong:
        at_an_address = asked.ledger is not None and is_at_an_address(asked.ledger)
        hint = "; check the address that --ledger gives" if at_an_address else ""
        raise click.ClickException(f"{wrong}{hint}") from None
    return INTERRUPTED if interrupted else 0


def _arguments_of_a_worker() -> list[str]:
    """Return the arguments of one of several workers: those of this command, except the address."""
    context = click.get_current_context()
    arguments: list[str] = []
    for option in context.command.params:
        name, value = option.opts[0], context.params[option.name or ""]
        if not isinstance(option, click.Option) or name in ("--port", "--workers", "--inherited"):
            continue
        if option.is_flag:
            arguments += [name] if value else []
        elif value is not None:
            for each in value if option.multiple else [value]:
                arguments += [name, str(each)]
    target = context.params["target"]
    return arguments if target is None else [*arguments, "--", target]


def _listen(asked: Options) -> socket.socket:
    """Return a socket that listens on the address."""
    try:
        return listening(asked.host, asked.port)
    except socket.gaierror as wrong:
        said = f"--host {asked.host}: {wrong.strerror}; give an address of this machine, such as 127.0.0.1"
    except OSError as wrong:
        reasons = {
            errno.EADDRINUSE: f"port {asked.port} is already in use; choose another with --port",
            errno.EACCES: f"port {asked.port} needs privileges; choose another with --port",
            errno.EADDRNOTAVAIL: f"--host {asked.host} is not an address of this machine",
        }
        if wrong.errno not in reasons:
            raise
        said = reasons[wrong.errno]
    raise click.UsageError(said)


def _app(asked: Options) -> App:
    """Make the application, and refuse what cannot be served."""
    token = None if asked.token_file is None else read_token(asked.token_file)
    if token is None and not is_loopback(asked.host):
        raise click.UsageError(
            f"{asked.host} can be reached from elsewhere: give --token-file, or listen on 127.0.0.1"
        )
    security = for_address(
        asked.host,
        token=token,
        names=frozenset(name.lower() for name in asked.allow_host),
        origins=frozenset(origin.lower().rstrip("/") for origin in asked.allow_origin),
    )
    return App(backend_of(_dispatcher(asked)), security, Limits(), owns=True, finish=asked.finish)


def _dispatcher(asked: Options) -> Dispatcher | DurableDispatcher:
    runner = demonstration if asked.target is None else load_runner(asked.target)
    if asked.ledger is None:
        return Dispatcher(runner)
    from turngate.durable import DurableDispatcher  # noqa: PLC0415 - only now

    return DurableDispatcher(runner, ledger_at(asked.ledger), on_death=asked.on_death)
