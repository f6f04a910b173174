"""The catalogue of known-bad designs: the name of each, what it does in one sentence, and what it breaks.

They looked right to good engineers, but are not. A checker must refute every one of them, or its verdict on
the mechanism is worth nothing. Each layer has each of them once, as a class that ``built_in`` finds by name:

* ``turngate_model.bad_mechanisms`` for the mechanism,
* ``turngate_model.durable.bad_mechanisms`` for processes that share a ledger,
* ``turngate_model.proof.flawed`` for the relation of the proof,
* ``turngate_verify.vectors.flaws`` for what the test vectors refute as well,
* ``turngate_verify.drivers.sabotage``, ``line_sabotage`` and ``ledger_sabotage`` for the real dispatchers,
  and ``limb_sabotage`` for the client, the feed and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from turngate_model.properties import AnyProperty, DurableProperty, Property

PropertyT_co = TypeVar("PropertyT_co", bound=AnyProperty, covariant=True)
BaseT = TypeVar("BaseT")


class Design(NamedTuple, Generic[PropertyT_co]):
    """A known-bad design: its name, what it does, and the properties that it is known to break."""

    name: str
    flaw: str
    breaks: tuple[PropertyT_co, ...]


def built_in(
    designs: Iterable[str], base: type[BaseT], names: Mapping[str, object]
) -> dict[str, type[BaseT]]:
    """Return the subclasses of a base that have the flaws of these designs, by the names of the designs.

    ``names`` are those of a module. The class of ``pending-flag`` is called ``PendingFlag``.
    """
    found: dict[str, type[BaseT]] = {}
    for design in designs:
        made = names.get("".join(word.capitalize() for word in design.split("-")))
        if isinstance(made, type) and issubclass(made, base):
            found[design] = made
    return found


NOT_IN_DESIGNS = frozenset({"cancel_run", "interrupt", "close"})
"""The operations that the designs never had. The explorer leaves them out when it explores a design."""

NOT_IN_LINE_DESIGNS = frozenset({"again", "close", "fails", "interrupt"})
"""The operations that the designs of the line are explored without: they need none of them to break."""

_P, _D = Property, DurableProperty

_IN_MEMORY: tuple[Design[Property], ...] = (
    Design(
        "no-accept-tracking",
        "Cancel looks at the active run only; a prompt accepted but not yet active escapes.",
        (_P.FULL_COVERAGE,),
    ),
    Design(
        "pending-flag",
        'One boolean "pending cancel" per session, consumed by the first run that enters.',
        (_P.FULL_COVERAGE, _P.NEVER_POISONED),
    ),
    Design(
        "pending-count",
        "Cancel reserves one unit per accepted run, each entry consumes one.",
        (_P.NEVER_POISONED, _P.FULL_COVERAGE),
    ),
    Design(
        "hasty-clear",
        "The mark is removed when any covered run has entered, or any turn ends.",
        (_P.FULL_COVERAGE,),
    ),
    Design("silent-entry", "Cancel-on-entry returns without a RunComplete.", (_P.EXACTLY_ONE_COMPLETE,)),
    Design(
        "unlocked-drain",
        "The queue is taken under the lock, the mark is looked at after it is released.",
        (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE),
    ),
    Design("silent-drop", "Queued runs removed by a cancel get no RunComplete.", (_P.EXACTLY_ONE_COMPLETE,)),
    Design("silent-fold", "Folded runs get no RunComplete.", (_P.EXACTLY_ONE_COMPLETE,)),
    Design(
        "swallowed-outer",
        "A finished run that hands off leaves its RunComplete to its successor.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "stranded-queue",
        "Only a turn that ends well hands off; after an error or a cancel the queue just stays.",
        (_P.NO_STRAND,),
    ),
    Design(
        "idle-gap", "The active entry is removed first, the successor chosen later.", (_P.FIFO, _P.ONE_TURN)
    ),
    Design(
        "unserialized-entry",
        "To ask whether the session is busy and to become active are two steps.",
        (_P.ONE_TURN,),
    ),
    Design(
        "blind-release",
        "A turn that ends removes whatever active entry it finds, its successor's too.",
        (_P.ONE_TURN, _P.FULL_COVERAGE),
    ),
    Design(
        "unlocked-clear",
        "Clearing the queue reads it and deletes it in two steps.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "late-mark",
        'Cancel reads "something is accepted", the handle closes, cancel then sets the mark.',
        (_P.NEVER_POISONED,),
    ),
    Design(
        "untracked",
        "In-process prompts carry sequence 0 and are covered by any mark present.",
        (_P.NEVER_POISONED,),
    ),
    Design(
        "late-own-complete",
        "A run's RunComplete is held back until the runs queued behind it are done.",
        (_P.LAST_WORD,),
    ),
    Design("publish-first", "RunComplete is published before the messages are written.", (_P.LAST_WORD,)),
    Design("reused-id", "A second prompt under a known run_id runs as well.", (_P.EXACTLY_ONE_COMPLETE,)),
    Design(
        "leaky-session", "The per-session lock or mark stays when the session is quiet.", (_P.NO_RESIDUE,)
    ),
)
_IN_LINE: tuple[Design[Property], ...] = (
    Design(
        "hold-flag-consumed",
        "A hold is a flag of the session that the first run which would start consumes.",
        (_P.HELD,),
    ),
    Design(
        "hold-poisons-new",
        "A hold is a flag of the session: a prompt accepted later is held too.",
        (_P.NO_STRAND, _P.NO_RESIDUE),
    ),
    Design(
        "hold-forgets-accepted",
        "A hold takes the queue and forgets what is accepted and has not entered.",
        (_P.HELD,),
    ),
    Design(
        "held-escapes-cancel",
        "A cancel drops what can run and leaves what is held.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design("fold-takes-held", "A fold takes from the head of the queue, held or not.", (_P.HELD,)),
    Design("stop-in-two", "Stop is a cancel of the turn and then a hold.", (_P.HELD,)),
    Design(
        "resume-starts-two",
        "Resume starts a run without asking whether a turn is active.",
        (_P.ONE_TURN,),
    ),
    Design("resume-lost", "A resume while a turn settles is forgotten.", (_P.NO_STRAND,)),
    Design("edit-after-start", "An edit is accepted although the runner has been called.", (_P.AS_EDITED,)),
    Design("requeue-edit", "An edit takes the run back and submits it again.", (_P.TERMINAL_IS_FINAL,)),
    Design("move-duplicates", "A move inserts before it removes.", (_P.EXACTLY_ONE_COMPLETE,)),
    Design(
        "cancel-by-place",
        "The mark is compared with the position of a run instead of its sequence.",
        (_P.NEVER_POISONED, _P.FULL_COVERAGE),
    ),
    Design("made-up-rank", "A move to the end takes the highest rank plus one.", (_P.FIFO,)),
    Design("late-steer", "A prompt for one turn is given to the next.", (_P.DECLARED_MOVE,)),
    Design(
        "second-lane",
        "Maintenance (compaction) runs beside the lane, without its lock.",
        (_P.ONE_TURN,),
    ),
    Design(
        "nested-turn",
        "A turn runs a queued one inside itself before it completes.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "borrowed-marker",
        'A "published" marker of another run suppresses the completion.',
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "borrowed-context",
        "Queued runs live in the first caller's context, whose cancellation kills them.",
        (_P.NEVER_POISONED,),
    ),
    Design("last-write-wins", "A second completion overwrites the first.", (_P.EXACTLY_ONE_COMPLETE,)),
)
_ON_LEDGER: tuple[Design[AnyProperty], ...] = (
    Design(
        "no-version",
        "A step is saved whatever happened to the session since it was loaded.",
        (_P.EXACTLY_ONE_COMPLETE, _P.ONE_TURN, _P.FULL_COVERAGE),
    ),
    Design(
        "no-fence",
        "A turn given up for dead may still finish, because its fence is not compared with the session's.",
        (_D.FENCED, _P.EXACTLY_ONE_COMPLETE),
    ),
    Design(
        "start-before-commit",
        "The runner is called before the step that made its run active is saved.",
        (_P.ONE_TURN, _P.FULL_COVERAGE),
    ),
    Design(
        "reused-worker",
        "A process that comes back under its old name takes what it held for its own.",
        (_D.ADOPTED, _P.ONE_TURN),
    ),
    Design(
        "answer-lost-retried",
        "The answer of the database is lost, the step was saved, and it is done again.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "notify-only-cancel",
        "A cancel reaches the process that runs the turn by a notification alone; the finish does not look.",
        (_P.FULL_COVERAGE,),
    ),
    Design(
        "orphaned-accept",
        "What a dead process had accepted and not entered waits for it.",
        (_D.ADOPTED, _D.DURABLE),
    ),
    Design(
        "reap-without-handoff",
        "The turn of a dead process is completed, its queue stays.",
        (_P.NO_STRAND, _D.ADOPTED),
    ),
)
_OF_THE_LIMBS: tuple[Design[Property], ...] = (
    Design(
        "cancel-resent",
        "The answer to a cancel is lost, and the client sends the cancel again.",
        (_P.NEVER_POISONED,),
    ),
    Design(
        "key-forgotten",
        "An idempotency key is not kept with what was done under it.",
        (_P.NEVER_POISONED,),
    ),
    Design(
        "path-identity",
        "Two names of one ledger file are taken for two files, each with its own locks.",
        (_P.ONE_TURN, _P.EXACTLY_ONE_COMPLETE),
    ),
    Design(
        "deaf-follower",
        "The background task that reads the ledger has failed, and nothing starts it again.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "cursor-of-another-life",
        "A cursor of another ledger, or of a part that is lost, is read as one of this ledger.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "snapshot-then-subscribe",
        "A caller sees a snapshot and subscribes; no subscriber receives what happens between the two.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "purge-past-reader",
        "A purge takes completions that a reader has not read, and the reader does not learn of it.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
)
_SMALL: tuple[Design[Property], ...] = (
    Design("last-in-first-out", "The newest queued run goes first.", (_P.FIFO,)),
    Design("folds-the-last", "A fold takes the newest queued run only.", (_P.FIFO,)),
    Design(
        "idle-poison",
        "A cancel of an idle session is remembered, and cancels the next run that enters.",
        (_P.NEVER_POISONED,),
    ),
    Design("keeps-the-queue", "A cancel ends the active turn, and the queue goes on.", (_P.FULL_COVERAGE,)),
    Design(
        "lets-the-turn-run", "A cancel drops the queue, and the active turn goes on.", (_P.FULL_COVERAGE,)
    ),
    Design(
        "one-lane",
        "All sessions share one lane: a run waits while another session has a turn.",
        (_P.NO_STRAND,),
    ),
    Design(
        "shared-mark",
        "One cancel mark for all sessions: a cancel covers what others have accepted.",
        (_P.NEVER_POISONED,),
    ),
    Design("silent-clear", "Queued runs removed by a clear get no RunComplete.", (_P.EXACTLY_ONE_COMPLETE,)),
    Design("clear-is-cancel", "A clear ends the active turn as well.", (_P.DECLARED_MOVE,)),
    Design(
        "completes-twice",
        "A turn that fails gets a RunComplete for the failure, and another for the end.",
        (_P.EXACTLY_ONE_COMPLETE,),
    ),
    Design(
        "late-retry", "A turn that fails is started again after its RunComplete.", (_P.TERMINAL_IS_FINAL,)
    ),
    Design(
        "cancels-the-session",
        "A cancel of one run cancels its whole session.",
        (_P.DECLARED_MOVE, _P.NEVER_POISONED),
    ),
    Design("keeps-the-queued", "A cancel of one run is forgotten if the run is queued.", (_P.FULL_COVERAGE,)),
    Design(
        "interrupts-itself", "A prompt that interrupts is cancelled by its own cancel.", (_P.NEVER_POISONED,)
    ),
    Design(
        "never-rejects",
        "A prompt that asks to be refused when its session is busy is queued.",
        (_P.DECLARED_MOVE,),
    ),
    Design(
        "stays-busy", "A session that had a run once is taken for a busy one ever after.", (_P.DECLARED_MOVE,)
    ),
    Design("wrong-record", "The messages of a cancelled turn say that it ended well.", (_P.ON_RECORD,)),
    Design("dropped-on-record", "A run dropped from the queue by a cancel leaves messages.", (_P.ON_RECORD,)),
)

DESIGNS = {design.name: design for design in _IN_MEMORY}
"""The designs of a dispatcher in memory."""
LINE_DESIGNS = {design.name: design for design in _IN_LINE}
"""The designs of holding, moving and editing what waits, and five of turns beside the lane.

The last five stand in a shipping agent today.
"""
EVERY_DESIGN = DESIGNS | LINE_DESIGNS
"""The designs that the explorer refutes on the mechanism."""
DURABLE_DESIGNS = {design.name: design for design in _ON_LEDGER}
"""The designs of processes that share a ledger, each met in such a system or in an early form of this one."""
LIMB_DESIGNS = {design.name: design for design in _OF_THE_LIMBS}
"""The designs of what is around the heart: client, feed and ledger files. The model has no such parts."""
SMALL_FLAWS = {design.name: design for design in _SMALL}
"""Small flaws that break what the designs break only in a race, or not at all."""
