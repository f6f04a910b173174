------------------------------ MODULE Turngate ------------------------------
(***************************************************************************)
(* The heart of the mechanism of Turngate, at the grain of its atomic      *)
(* steps: accept, enter, cancel, fold, a turn that ends well or fails, the *)
(* write that returns, settling, handoff.  Left out: interrupting and      *)
(* releasing, clearing the queue, cancelling a single run, closing, stores *)
(* that fail, the text of messages.                                        *)
(*                                                                         *)
(* A run is known by its sequence within its session, from 1: no step      *)
(* compares sequences of two sessions.  Sessions are alike, so the first   *)
(* prompt goes to the first of them.                                       *)
(*                                                                         *)
(* What the dispatcher holds and what has become of the runs are two       *)
(* variables.  The steps decide by the first alone; the properties speak   *)
(* of the second.  To check them:                                          *)
(*                                                                         *)
(*     java -cp tla2tools.jar tlc2.TLC -workers 1 -deadlock Turngate       *)
(*                                                                         *)
(* One worker, so that a counterexample is a shortest one; -deadlock,      *)
(* because it is no error that all prompts and cancels are used up.        *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Prompts,      \* how many prompts may be accepted
  Cancels,      \* how many cancels may be issued
  Sessions,     \* how many sessions there are
  Design        \* "sound", or the known-bad design that does one thing otherwise

ASSUME {Prompts, Cancels} \subseteq Nat /\ Sessions \in {1, 2}
ASSUME Design \in {"sound", "no-accept-tracking", "pending-flag", "pending-count", "hasty-clear",
                   "leaky-session", "swallowed-outer", "stranded-queue", "idle-gap"}

VARIABLES
  held,         \* for each session, all that the dispatcher holds for it
  life,         \* for each session, what has become of its runs
  cancels,      \* how many cancels have been issued
  published     \* the RunCompletes that the last step has published; not part of the state (see View)

vars == <<held, life, cancels, published>>

View == <<held, life, cancels>>
  \* What makes two states different.  RunCompletes are judged in the step that publishes them.

Session == 1..Sessions
Run == 1..Prompts

NoTurn == [lead |-> 0, folded |-> <<>>, phase |-> "none", cancelled |-> FALSE]

Nothing ==
  \* What is held for a quiet session.
  [accepted |-> {},             \* the runs that have not entered
   foldable |-> {},             \* the accepted and queued runs that may still join an active turn
   mark     |-> 0,              \* accepted runs with a sequence up to here are covered
   entering |-> <<>>,           \* the runs cancelled on entry and being written
   queue    |-> <<>>,           \* the queued runs in sequence order
   turn     |-> NoTurn,         \* the active turn: its lead, the runs folded in, and how far it is
   pending  |-> 0,              \* what the designs pending-flag and pending-count keep instead of a mark
   gaps     |-> 0]              \* what the design idle-gap has still to do: choose a successor

-----------------------------------------------------------------------------
(* What can be said of a session. *)

Range(sequence) == {sequence[i] : i \in DOMAIN sequence}
Latest(runs) == CHOOSE r \in runs : \A other \in runs : other <= r
Runs(turn) == IF turn = NoTurn THEN {} ELSE {turn.lead} \cup Range(turn.folded)
Accepted(s) == Len(life[s].state)
Total == Accepted(1) + (IF Sessions > 1 THEN Accepted(2) ELSE 0)
In(l, states) == {r \in DOMAIN l.state : l.state[r] \in states}
InFlight(l) == In(l, {"accepted", "cancel_on_entry", "queued", "active"})
Writing == {"end_turn", "error", "canceled"}

AtRest(s) ==
  \* Nothing is left that would happen of itself.
  held[s].turn = NoTurn /\ held[s].entering = <<>> /\ held[s].gaps = 0

-----------------------------------------------------------------------------
(* What the steps are made of. *)

Moved(l, runs, state) == [l EXCEPT !.state = [r \in DOMAIN @ |-> IF r \in runs THEN state ELSE @[r]]]
  \* The runs are in another state.

Wrote(l, runs, says) == [l EXCEPT !.record = [r \in DOMAIN @ |-> IF r \in runs THEN says ELSE @[r]]]
  \* The messages of the runs are on record.

Completed(l, runs) == [Wrote(Moved(l, runs, "complete"), runs, "nothing") EXCEPT !.covered = @ \ runs]
  \* Of a complete run only that it is complete is kept.

RunCompletes(s, l, runs, cancelled) ==
  \* What is published about the runs, and what was true of each at that moment.
  {[session |-> s, run |-> r, cancelled |-> cancelled,
    from |-> l.state[r], covered |-> r \in l.covered, record |-> l.record[r]] : r \in runs}

Started(h, run) ==
  \* A turn is begun for the run.
  [h EXCEPT !.turn = [NoTurn EXCEPT !.lead = run, !.phase = "running"], !.foldable = @ \ {run}]

RaisedMark(h) ==
  \* A cancel covers every accepted run: all of them have a sequence up to the latest that is held.
  LET all == h.accepted \cup Range(h.entering) \cup Range(h.queue) \cup Runs(h.turn)
  IN  IF h.accepted # {} THEN Latest({h.mark} \cup all) ELSE h.mark

LoweredMark(mark, accepted) ==
  \* The mark goes when no accepted run needs it.
  CASE Design = "hasty-clear" -> 0
    [] Design = "leaky-session" -> mark
    [] OTHER -> IF {r \in accepted : r <= mark} # {} THEN mark ELSE 0

Marked(h) ==
  \* The accepted runs are covered; whether a marked run could have been folded no step will ask again.
  LET marked ==
        CASE Design = "no-accept-tracking" -> h
          [] Design = "pending-flag" -> [h EXCEPT !.pending = IF h.accepted # {} THEN 1 ELSE 0]
          [] Design = "pending-count" -> [h EXCEPT !.pending = Cardinality(h.accepted)]
          [] OTHER -> [h EXCEPT !.mark = RaisedMark(h)]
  IN  [marked EXCEPT !.foldable = {r \in @ : r > marked.mark}]

Applies(h, run) ==
  \* A cancel applies to the accepted run.
  IF Design \in {"pending-flag", "pending-count"} THEN h.pending > 0 ELSE run <= h.mark

Occupied(h) ==
  \* A newcomer has to wait.
  IF Design = "idle-gap" THEN h.turn # NoTurn ELSE ~(h.turn = NoTurn /\ h.queue = <<>>)

InOrder(queue, run) ==
  \* The queue with the run where its sequence belongs, however late it entered.
  LET Earlier(queued) == queued < run
      Later(queued) == queued > run
  IN  SelectSeq(queue, Earlier) \o <<run>> \o SelectSeq(queue, Later)

HandsOff(turn) == Design = "stranded-queue" => turn.phase = "end_turn"
  \* A turn hands off whatever its outcome.

SuccessorOf(h, l) ==
  \* The first of the queue, if there is one, becomes the next turn.
  IF h.queue = <<>> THEN <<h, l>>
  ELSE <<Started([h EXCEPT !.queue = Tail(@)], Head(h.queue)), Moved(l, {Head(h.queue)}, "active")>>

Step(s, h, l, completes) ==
  \* One session goes on, and RunCompletes are published.
  /\ held' = [held EXCEPT ![s] = h]
  /\ life' = [life EXCEPT ![s] = l]
  /\ published' = completes

-----------------------------------------------------------------------------
(* The steps. *)

Init ==
  /\ held = [s \in Session |-> Nothing]
  /\ life = [s \in Session |-> [state |-> <<>>, covered |-> {}, record |-> <<>>]]
  /\ cancels = 0
  /\ published = {}

Accept(s, foldable) ==
  \* A prompt is taken in and gets the next sequence; it may be folded later, or must have its own turn.
  LET run == Accepted(s) + 1
      h == [held[s] EXCEPT !.accepted = @ \cup {run}, !.foldable = IF foldable THEN @ \cup {run} ELSE @]
      l == [life[s] EXCEPT !.state = Append(@, "accepted"), !.record = Append(@, "nothing")]
  IN  /\ Total < Prompts
      /\ Total = 0 => s = 1
      /\ Step(s, h, l, {})
      /\ UNCHANGED cancels

Enter(s, run) ==
  \* What becomes of an accepted run is decided: cancelled on entry, queued, or active.
  LET accepted == held[s].accepted \ {run}
      h == [held[s] EXCEPT !.accepted = accepted, !.mark = LoweredMark(@, accepted),
                           !.pending = IF @ > 0 THEN @ - 1 ELSE 0]
  IN  /\ run \in held[s].accepted
      /\ CASE Applies(held[s], run) ->
                Step(s, [h EXCEPT !.entering = Append(@, run), !.foldable = @ \ {run}],
                     Moved(life[s], {run}, "cancel_on_entry"), {})
           [] ~Applies(held[s], run) /\ Occupied(h) ->
                Step(s, [h EXCEPT !.queue = InOrder(@, run)], Moved(life[s], {run}, "queued"), {})
           [] OTHER ->
                Step(s, Started(h, run), Moved(life[s], {run}, "active"), {})
      /\ UNCHANGED cancels

Cancel(s) ==
  \* All in flight is covered: what is accepted by the mark, the queue is dropped, the turn told to stop.
  LET dropped == Range(held[s].queue)
      h == Marked(held[s])
      l == [life[s] EXCEPT !.covered = InFlight(life[s])]
  IN  /\ cancels < Cancels
      /\ Step(s, [h EXCEPT !.queue = <<>>, !.foldable = @ \ dropped, !.turn.cancelled = h.turn # NoTurn],
              Completed(l, dropped), RunCompletes(s, l, dropped, TRUE))
      /\ cancels' = cancels + 1

Fold(s) ==
  \* The runner asks for follow-ups: they join from the head of the queue, up to one that wants its own turn.
  LET h == held[s]
      stays == {i \in DOMAIN h.queue : h.turn.cancelled \/ h.queue[i] \notin h.foldable}
      joining == {i \in DOMAIN h.queue : \A j \in stays : i < j}
      joined == SubSeq(h.queue, 1, Cardinality(joining))
  IN  /\ h.turn.phase = "running"
      /\ h.queue # <<>>
      /\ Step(s, [h EXCEPT !.queue = SubSeq(@, Len(joined) + 1, Len(@)), !.turn.folded = @ \o joined,
                           !.foldable = @ \ Range(joined)],
              Moved(life[s], Range(joined), "active"), {})
      /\ UNCHANGED cancels

End(s, outcome) ==
  \* The runner's call is over, and what came of it is being written: canceled, if it was told to stop.
  LET turn == held[s].turn
  IN  /\ turn.phase = "running"
      /\ (outcome = "canceled") = turn.cancelled
      /\ Step(s, [held[s] EXCEPT !.turn.phase = outcome], life[s], {})
      /\ UNCHANGED cancels

Written(s) ==
  \* The write about a turn has returned.  If a cancel came meanwhile it is written again.  Else the turn is
  \* over, its RunCompletes are published, and its successor starts in the same step.
  LET turn == held[s].turn
      l == Wrote(life[s], Runs(turn), IF turn.phase = "canceled" THEN "canceled" ELSE "otherwise")
      again == turn.cancelled /\ turn.phase # "canceled"
      completing == IF Design = "swallowed-outer" /\ held[s].queue # <<>> THEN {} ELSE Runs(turn)
      h == [held[s] EXCEPT !.turn = NoTurn, !.mark = IF Design = "hasty-clear" THEN 0 ELSE @]
      next == IF Design = "idle-gap"
              THEN <<[h EXCEPT !.gaps = IF h.queue = <<>> THEN @ ELSE @ + 1], Completed(l, completing)>>
              ELSE IF HandsOff(turn) THEN SuccessorOf(h, Completed(l, completing))
              ELSE <<h, Completed(l, completing)>>
  IN  /\ turn.phase \in Writing
      /\ IF again
         THEN Step(s, [held[s] EXCEPT !.turn.phase = "canceled"], l, {})
         ELSE Step(s, next[1], next[2], RunCompletes(s, l, completing, turn.cancelled))
      /\ UNCHANGED cancels

Settle(s, run) ==
  \* The canceled turn of a run cancelled on entry is written.
  LET l == Wrote(life[s], {run}, "canceled")
      Others(entering) == entering # run
  IN  /\ run \in Range(held[s].entering)
      /\ Step(s, [held[s] EXCEPT !.entering = SelectSeq(@, Others)],
              Completed(l, {run}), RunCompletes(s, l, {run}, TRUE))
      /\ UNCHANGED cancels

ChooseSuccessor(s) ==
  \* The design idle-gap does now what belonged into the step that ended the turn.
  LET next == SuccessorOf([held[s] EXCEPT !.gaps = @ - 1], life[s])
  IN  /\ held[s].gaps > 0
      /\ Step(s, next[1], next[2], {})
      /\ UNCHANGED cancels

OfItself(s) ==
  \* What happens if runners end and stores answer.
  \/ \E outcome \in Writing : End(s, outcome)
  \/ Written(s)
  \/ \E run \in Run : Settle(s, run)
  \/ ChooseSuccessor(s)

Next ==
  \E s \in Session :
    \/ \E foldable \in BOOLEAN : Accept(s, foldable)
    \/ \E run \in Run : Enter(s, run)
    \/ Cancel(s)
    \/ Fold(s)
    \/ OfItself(s)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What always holds, by id.  A step is judged by the states around it and by what it published. *)

BecomesActive(s, run) ==
  run \in In(life'[s], {"active"}) /\ run \notin In(life[s], {"active"})

Starts(s) == held'[s].turn.lead \notin {0, held[s].turn.lead}

NEVER_POISONED ==
  \* A run is cancelled, on entry or by its RunComplete, only if a cancel covers it.
  [][/\ \A complete \in published' : complete.cancelled => complete.covered
     /\ \A s \in Session : In(life'[s], {"cancel_on_entry"}) \subseteq life'[s].covered]_vars

FULL_COVERAGE ==
  \* A covered run is never queued and never becomes active, and its RunComplete says so.
  [][/\ \A complete \in published' : complete.covered => complete.cancelled
     /\ \A s \in Session : \A run \in life[s].covered :
          life'[s].state[run] \in {life[s].state[run], "cancel_on_entry", "complete"}]_vars

EXACTLY_ONE_COMPLETE ==
  \* No complete run is completed again; at rest none is owed (what is stranded is NO_STRAND's).
  [][/\ \A complete \in published' : complete.from # "complete"
     /\ \A s \in Session : AtRest(s)' => In(life'[s], {"cancel_on_entry", "active"}) = {}]_vars

ONE_TURN ==
  \* No turn starts while another one of its session runs.
  [][\A s \in Session : Starts(s) => held[s].turn.phase # "running"]_vars

NO_STRAND ==
  \* At rest the queue is empty.
  [][\A s \in Session : AtRest(s)' => In(life'[s], {"queued"}) = {}]_vars

FIFO ==
  \* A run becomes active ahead of no run that was accepted earlier and is queued; a newcomer, of none queued.
  [][\A s \in Session : \A run \in DOMAIN life'[s].state : BecomesActive(s, run) =>
       \A other \in In(life[s], {"queued"}) \cap In(life'[s], {"queued"}) :
         life[s].state[run] = "queued" /\ run < other]_vars

LAST_WORD ==
  \* A RunComplete comes after the messages of its run are written, and before the next turn starts.
  [][/\ \A complete \in published' : complete.from # "queued" => complete.record # "nothing"
     /\ \A s \in Session : Starts(s) /\ held[s].turn.phase # "running" =>
          In(life'[s], {"active"}) = {held'[s].turn.lead}
     /\ \A s \in Session : \A run \in In(life'[s], {"complete"}) : life'[s].record[run] = "nothing"]_vars

ON_RECORD ==
  \* A run cancelled on entry or while active leaves a record that says canceled; one dropped from the queue none.
  [][\A complete \in published' :
       /\ complete.from = "queued" => complete.record = "nothing"
       /\ complete.from # "queued" /\ complete.cancelled => complete.record = "canceled"]_vars

IDLE_CANCEL ==
  \* A cancel of a session with nothing in flight changes nothing.
  [][cancels' # cancels => \A s \in Session : InFlight(life[s]) = {} => held'[s] = held[s]]_vars

ISOLATION ==
  \* A step changes one session.
  [][\A s, t \in Session : held'[s] # held[s] /\ held'[t] # held[t] => s = t]_vars

NO_RESIDUE ==
  \* A session with nothing in flight holds nothing.
  [][\A s \in Session : AtRest(s)' /\ InFlight(life'[s]) = {} => held'[s] = Nothing]_vars

TERMINAL_IS_FINAL ==
  \* A complete run stays complete.
  [][\A s \in Session : In(life[s], {"complete"}) \subseteq In(life'[s], {"complete"})]_vars

DECLARED_MOVE ==
  \* A run goes from one state to another as the lifecycle has it.
  [][\A s \in Session : \A run \in DOMAIN life[s].state :
       LET from == life[s].state[run]
           to == life'[s].state[run]
       IN  CASE from = "accepted" -> to # "complete"
             [] from = "queued" -> to \in {"queued", "active", "complete"}
             [] OTHER -> to \in {from, "complete"}]_vars

-----------------------------------------------------------------------------
(* Liveness.  The one assumption: what happens of itself does happen, so runners end and stores answer. *)

FairSpec ==
  /\ Spec
  /\ \A s \in Session :
       /\ WF_vars(\E outcome \in Writing : End(s, outcome))
       /\ WF_vars(Written(s))
       /\ \A run \in Run : WF_vars(Settle(s, run))
       /\ WF_vars(ChooseSuccessor(s))

ENTERED_RUNS_COMPLETE ==
  \* Every entered run completes.
  \A s \in Session : \A run \in Run :
    run \in In(life[s], {"cancel_on_entry", "queued", "active"}) ~> run \in In(life[s], {"complete"})
=============================================================================
