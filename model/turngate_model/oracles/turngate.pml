/*
 * Turngate: the heart of the mechanism, at the grain of its atomic steps.
 *
 * Prompts are accepted into sessions, entered, folded into an active turn,
 * cancelled, written down and completed. Each d_step is one uninterruptible
 * step; between two of them anything else may happen. Left out: interrupting
 * and releasing, clearing the queue, cancelling a single run, closing, stores
 * that fail, the text of messages.
 *
 * A run is known by its sequence within its session, from 1: no step compares
 * sequences of two sessions. Sessions are alike, so the first prompt goes to
 * the first of them.
 *
 * The mechanism knows where each run is, a mark, a queue and a turn. Beside it
 * history is kept that no decision reads: which runs a cancel covers, and what
 * is on record about them. The properties are assertions, under their ids.
 *
 * To see every reachable state, breadth first:
 *
 *     spin -a -o2 turngate.pml
 *     gcc -O2 -DBFS -DSAFETY -DNOREDUCE -o pan pan.c && ./pan
 *
 * -o2 because SPIN would hide a variable that is only written, and count fewer
 * states; -DNOREDUCE because all interleavings are counted. Bounds, design and
 * property are set with -D when the verifier is generated.
 */

#ifndef PROMPTS
#define PROMPTS 3       /* prompts that may be accepted */
#endif
#ifndef CANCELS
#define CANCELS 2       /* cancels that may be issued */
#endif
#ifndef SESSIONS
#define SESSIONS 2      /* sessions there are, 1 or 2 */
#endif

/* The mechanism is sound; each other design does a single thing otherwise, and is known to be bad. */
#define SOUND 0
#define NO_ACCEPT_TRACKING 1
#define PENDING_FLAG 2
#define PENDING_COUNT 3
#define HASTY_CLEAR 4
#define LEAKY_SESSION 5
#define SWALLOWED_OUTER 6
#define STRANDED_QUEUE 7
#define IDLE_GAP 8
#ifndef DESIGN
#define DESIGN SOUND
#endif

/* All properties are asserted, or ONLY the one that is named. */
#define ALL 0
#define NEVER_POISONED 1
#define FULL_COVERAGE 2
#define EXACTLY_ONE_COMPLETE 3
#define ONE_TURN 4
#define NO_STRAND 5
#define FIFO 6
#define LAST_WORD 7
#define ON_RECORD 8
#define NO_RESIDUE 9
#ifndef ONLY
#define ONLY ALL
#endif
#define must(property, holds) assert((ONLY != ALL && ONLY != property) || (holds))

#define NOBODY 0
#define NO_TURN 0
#define NOTHING 0
mtype:life = { ACCEPTED, CANCEL_ON_ENTRY, QUEUED, ACTIVE, COMPLETE };
mtype:phase = { RUNNING, WRITING_END_TURN, WRITING_ERROR, WRITING_CANCELED };
mtype:record = { SAYS_CANCELED, SAYS_OTHERWISE };

typedef Runs {
    mtype:life state[PROMPTS + 1];      /* where each run is in its life */
    bool foldable[PROMPTS + 1];         /* whether it may join a turn; kept while that can still matter */
    bool covered[PROMPTS + 1];          /* history: a cancel came after its accept, before its RunComplete */
    mtype:record record[PROMPTS + 1]    /* history: what is written about it, until it is complete */
};

Runs runs[SESSIONS];
byte known[SESSIONS];                                   /* runs ever accepted, so the latest sequence */
byte mark[SESSIONS];                                    /* accepted runs up to this sequence are covered */
chan entering[SESSIONS] = [PROMPTS] of { byte };        /* cancelled on entry and being written */
chan queue[SESSIONS] = [PROMPTS] of { byte };           /* in sequence order */
byte lead[SESSIONS];                                    /* the run that the active turn was started for */
chan folded[SESSIONS] = [PROMPTS] of { byte };          /* the runs that joined it, in that order */
mtype:phase phase[SESSIONS];                            /* how far the turn is: running, or what is being written */
bool interrupted[SESSIONS];                             /* a cancel has covered the turn */
byte pending[SESSIONS];                                 /* what two designs keep instead of a mark */
byte gaps[SESSIONS];                                    /* what one design has still to do: choose a successor */
byte prompts;                                           /* accepted in all */
byte cancels;                                           /* issued in all */

/* What a step needs while it is taken. Between steps they are all 0, so that they make no two states differ. */
byte i;
byte next;
bool applies;
bool quiet;
mtype:phase outcome;

/* All that follows is about the session s of the process that takes the step. */
#define STATE runs[s].state
#define FOLDABLE runs[s].foldable
#define COVERED runs[s].covered
#define RECORD runs[s].record

/* What the steps are made of. */

/* A RunComplete is published: the last word on a run, of which only that it is complete is kept. */
inline complete(r, cancelled)
{
    must(EXACTLY_ONE_COMPLETE, STATE[r] != COMPLETE);
    must(NEVER_POISONED, !(cancelled) || COVERED[r]);
    must(FULL_COVERAGE, (cancelled) || !COVERED[r]);
    must(LAST_WORD, STATE[r] == QUEUED || RECORD[r] != NOTHING);
    must(ON_RECORD, STATE[r] != QUEUED || RECORD[r] == NOTHING);
    must(ON_RECORD, STATE[r] == QUEUED || !(cancelled) || RECORD[r] == SAYS_CANCELED);
    STATE[r] = COMPLETE;
    COVERED[r] = false;
    RECORD[r] = NOTHING
}

/* A run becomes active, by entry, handoff or fold: not when covered, and not ahead of a queue. */
inline become_active(r)
{
    must(FULL_COVERAGE, !COVERED[r]);
    for (i : 1 .. PROMPTS) {
        must(FIFO, i == r || STATE[i] != QUEUED || (STATE[r] == QUEUED && r < i))
    };
    STATE[r] = ACTIVE;
    FOLDABLE[r] = false
}

/* A turn starts: when no other runs, and every run of the one before it is complete. */
inline start(r)
{
    must(ONE_TURN, phase[s] != RUNNING);
    for (i : 1 .. PROMPTS) {
        must(LAST_WORD, phase[s] == RUNNING || STATE[i] != ACTIVE)
    };
    become_active(r);
    lead[s] = r;
    phase[s] = RUNNING
}

/* A cancel covers the accepted runs: all that there are have a sequence up to the latest in flight. */
inline raise_mark()
{
    applies = false;
    next = NOBODY;
    for (i : 1 .. PROMPTS) {
        applies = applies || STATE[i] == ACCEPTED;
        next = (STATE[i] != 0 && STATE[i] != COMPLETE -> i : next)
    };
#if DESIGN == NO_ACCEPT_TRACKING
    skip;
#elif DESIGN == PENDING_FLAG
    pending[s] = applies;
#elif DESIGN == PENDING_COUNT
    pending[s] = 0;
    for (i : 1 .. PROMPTS) {
        pending[s] = pending[s] + (STATE[i] == ACCEPTED)
    };
#else
    mark[s] = (applies && next > mark[s] -> next : mark[s]);
#endif
    for (i : 1 .. PROMPTS) {
        FOLDABLE[i] = FOLDABLE[i] && i > mark[s]
    }
}

/* The mark goes when no accepted run needs it. */
inline lower_mark()
{
#if DESIGN == HASTY_CLEAR
    mark[s] = 0
#elif DESIGN == LEAKY_SESSION
    skip
#else
    applies = false;
    for (i : 1 .. PROMPTS) {
        applies = applies || (STATE[i] == ACCEPTED && i <= mark[s])
    };
    mark[s] = (applies -> mark[s] : 0)
#endif
}

/* The first of the queue becomes the next turn, if there is one. */
inline start_next()
{
    if
    :: len(queue[s]) > 0 -> queue[s] ? next; start(next)
    :: else
    fi
}

/* The turn is over and its successor starts in the same step, whatever the outcome. */
inline hand_off()
{
    outcome = phase[s];
    lead[s] = NOBODY;
    phase[s] = NO_TURN;
    interrupted[s] = false;
#if DESIGN == HASTY_CLEAR
    mark[s] = 0;
#endif
#if DESIGN == IDLE_GAP
    gaps[s] = gaps[s] + (len(queue[s]) > 0)
#elif DESIGN == STRANDED_QUEUE
    if
    :: outcome == WRITING_END_TURN -> start_next()
    :: else
    fi
#else
    start_next()
#endif
}

/* After a step: a session with nothing left to do of itself owes nothing, and a quiet one holds nothing.
   A cancel of a quiet session is looked at too, so it has changed nothing (IDLE_CANCEL). */
inline look()
{
    if
    :: phase[s] == NO_TURN && len(entering[s]) == 0 && gaps[s] == 0 ->
        must(NO_STRAND, len(queue[s]) == 0);
        quiet = true;
        for (i : 1 .. PROMPTS) {
            must(EXACTLY_ONE_COMPLETE, STATE[i] != ACTIVE && STATE[i] != CANCEL_ON_ENTRY);
            quiet = quiet && (STATE[i] == 0 || STATE[i] == COMPLETE)
        };
        must(NO_RESIDUE, !quiet || (mark[s] == 0 && pending[s] == 0))
    :: else
    fi;
    i = 0; next = 0; applies = 0; quiet = 0; outcome = 0
}

/* The steps. */

/* A prompt is taken in and gets the next sequence; it may be folded later, or must have its own turn. */
inline accept(may_fold)
{
    prompts++;
    known[s]++;
    STATE[known[s]] = ACCEPTED;
    FOLDABLE[known[s]] = may_fold
}

/* What becomes of an accepted run is decided: cancelled on entry, queued, or active. */
inline enter(r)
{
#if DESIGN == PENDING_FLAG || DESIGN == PENDING_COUNT
    applies = pending[s] > 0;
    pending[s] = pending[s] - applies;
#else
    applies = r <= mark[s];
#endif
    if
    :: applies ->
        must(NEVER_POISONED, COVERED[r]);
        STATE[r] = CANCEL_ON_ENTRY;
        FOLDABLE[r] = false;
        entering[s] ! r
#if DESIGN == IDLE_GAP
    :: !applies && lead[s] != NOBODY ->
#else
    :: !applies && (lead[s] != NOBODY || len(queue[s]) > 0) ->
#endif
        must(FULL_COVERAGE, !COVERED[r]);
        STATE[r] = QUEUED;
        queue[s] !! r
    :: else ->
        start(r)
    fi;
    lower_mark()
}

/* All that is in flight is covered: what is accepted by the mark, the queue is dropped, the turn told to stop. */
inline cancel()
{
    cancels++;
    for (i : 1 .. PROMPTS) {
        COVERED[i] = STATE[i] != 0 && STATE[i] != COMPLETE
    };
    raise_mark();
    do
    :: queue[s] ? next -> FOLDABLE[next] = false; complete(next, true)
    :: len(queue[s]) == 0 -> break
    od;
    interrupted[s] = lead[s] != NOBODY
}

/* The runner asks for follow-ups: they join from the head of the queue, up to one that wants its own turn. */
inline fold()
{
    next = NOBODY;
    do
    :: len(queue[s]) > 0 ->
        queue[s] ? <next>;
        if
        :: FOLDABLE[next] && !interrupted[s] ->
            queue[s] ? next;
            become_active(next);
            folded[s] ! next
        :: else -> break
        fi
    :: len(queue[s]) == 0 -> break
    od
}

/* The write about a turn has returned. If a cancel came meanwhile it is written again; else the turn is over. */
inline written()
{
    for (i : 1 .. PROMPTS) {
        if
        :: i == lead[s] || folded[s] ?? [eval(i)] ->
            RECORD[i] = (phase[s] == WRITING_CANCELED -> SAYS_CANCELED : SAYS_OTHERWISE)
        :: else
        fi
    };
    if
    :: interrupted[s] && phase[s] != WRITING_CANCELED ->
        phase[s] = WRITING_CANCELED
    :: else ->
#if DESIGN == SWALLOWED_OUTER
        applies = len(queue[s]) == 0;
#else
        applies = true;
#endif
        if
        :: applies -> complete(lead[s], interrupted[s])
        :: else
        fi;
        do
        :: folded[s] ? next ->
            if
            :: applies -> complete(next, interrupted[s])
            :: else
            fi
        :: len(folded[s]) == 0 -> break
        od;
        hand_off()
    fi
}

/* The canceled turn of a run cancelled on entry is written. */
inline settle(r)
{
    entering[s] ?? eval(r);
    RECORD[r] = SAYS_CANCELED;
    complete(r, true)
}

/* What happens to a session: callers accept and cancel, the runner folds and ends, the store returns. */
active [SESSIONS] proctype Session()
{
    byte s = _pid;
end:
    do
    :: d_step { prompts < PROMPTS && (s == 0 || prompts > 0) -> accept(true); look() }
    :: d_step { prompts < PROMPTS && (s == 0 || prompts > 0) -> accept(false); look() }
    :: d_step { cancels < CANCELS -> cancel(); look() }
    :: d_step { phase[s] == RUNNING && len(queue[s]) > 0 -> fold(); look() }
    :: d_step { phase[s] == RUNNING && !interrupted[s] -> phase[s] = WRITING_END_TURN; look() }
    :: d_step { phase[s] == RUNNING && !interrupted[s] -> phase[s] = WRITING_ERROR; look() }
    :: d_step { phase[s] == RUNNING && interrupted[s] -> phase[s] = WRITING_CANCELED; look() }
    :: d_step { phase[s] != NO_TURN && phase[s] != RUNNING -> written(); look() }
    :: d_step { gaps[s] > 0 -> gaps[s]--; start_next(); look() }
    od
}

/* What happens to one run: its caller enters it, and if it was cancelled on entry the store returns. */
active [SESSIONS * PROMPTS] proctype Run()
{
    byte s = (_pid - SESSIONS) / PROMPTS;
    byte r = (_pid - SESSIONS) % PROMPTS + 1;
end:
    do
    :: d_step { STATE[r] == ACCEPTED -> enter(r); look() }
    :: d_step { STATE[r] == CANCEL_ON_ENTRY -> settle(r); look() }
    od
}
