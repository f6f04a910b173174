"""``turngate serve``: an agent behind HTTP, with a live page."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from turngate import Dispatcher
from turngate.server import Limits, demonstration
from turngate.server.running import App, for_address, is_loopback, serve_app
from turngate_verify.cli.targets import loaded
from turngate_verify.cli.terminal import out
from turngate_verify.endings import INTERRUPTED

if TYPE_CHECKING:
    from turngate.server.running import AnyDispatcher


@click.command()
@click.argument("target", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="0: any.")
@click.option("--ledger", metavar="PATH_OR_DSN", help="Keep runs in an SQLite file or in PostgreSQL.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token that clients must present; needed on any address but loopback.",
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Answer under this name, too; '*': any.")
@click.option("--allow-origin", multiple=True, metavar="ORIGIN", help="Let pages of this origin call.")
@click.option(
    "--finish",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that runs may go on by themselves when the server is asked to end.",
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Needs a ledger.")
@click.option("--verbose", is_flag=True, help="Log requests (no prompt and no token is ever logged).")
def serve(
    target: str | None,
    host: str,
    port: int,
    ledger: str | None,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    finish: float,
    workers: int,
    verbose: bool,
) -> int:
    """Serve an agent over HTTP, with a live page; a demonstration without TARGET.

    TARGET is module:runner or path.py:runner. SIGTERM ends the server: it takes
    no more prompts, lets what is in flight end for a while, tells every client,
    and exits with 0.
    """
    if workers > 1 and ledger is None:
        raise click.UsageError(
            "--workers above 1 needs --ledger: without one, each process would run a turn of the same session"
        )
    if workers > 1:
        raise click.UsageError("--workers above 1 is not there yet; start several servers on one ledger")
    token = None if token_file is None else _token(token_file)
    if token is None and not is_loopback(host):
        raise click.UsageError(
            f"{host} can be reached from elsewhere: give --token-file, or listen on 127.0.0.1"
        )
    security = for_address(
        host,
        token=token,
        names=frozenset(name.lower() for name in allow_host),
        origins=frozenset(origin.lower().rstrip("/") for origin in allow_origin),
    )
    app = App(_dispatcher(_runner(target), ledger), security, Limits(), owns=True, finish=finish)

    def started(listening_on: int) -> None:
        name = f"[{host}]" if ":" in host else host
        about = target or "the demonstration agent"
        out.print(f"turngate serves {about} on http://{name}:{listening_on}/ (Ctrl-C ends it)")

    interrupted = serve_app(app, host, port, verbose=verbose, on_start=started)
    return INTERRUPTED if interrupted else 0


def _runner(target: str | None) -> Any:
    if target is None:
        return demonstration
    runner = loaded(target, "module:runner or path.py:runner")
    call = runner if inspect.isroutine(runner) else getattr(runner, "__call__", None)  # noqa: B004 - the method
    if not inspect.iscoroutinefunction(call):
        raise click.UsageError(f"{target} is no runner: it must be an async function that takes a turn")
    return runner


def _token(file: Path) -> str:
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise click.UsageError(f"there is no token in {file}")
    return token


def _dispatcher(runner: Any, ledger: str | None) -> AnyDispatcher:
    if ledger is None:
        return Dispatcher(runner)
    try:
        from turngate import durable  # noqa: PLC0415 - whoever has no ledger need not load it
    except ImportError as missing:
        what = (
            missing.name if missing.name and not missing.name.startswith("turngate") else "turngate.durable"
        )
        raise click.UsageError(f"--ledger needs {what}, which is not installed") from None
    is_dsn = ledger.startswith(("postgres://", "postgresql://"))
    made = durable.PostgresLedger(ledger) if is_dsn else durable.SqliteLedger(ledger)
    dispatcher: AnyDispatcher = durable.DurableDispatcher(runner, made)
    return dispatcher
