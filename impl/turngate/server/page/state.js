// What the page knows: runs and sessions, moved by events. Nothing here draws.
//
// A run never goes back: behind a gap, or when a snapshot and an event say the same, what is known stays.

const RANK = {accepted: 0, cancel_on_entry: 1, queued: 1, active: 2, complete: 3};
const KEPT = 500; // complete runs; the oldest go first
const TOLD = 40; // what happened in a session; the oldest goes first

const ENTERED = {
  active: 'enters an idle session: its turn begins',
  queued: 'enters a busy session: it waits',
  cancel_on_entry: 'enters after a cancel that covers it: it will not run',
};
const ENDED = {
  finished: 'is complete: finished', failed: 'is complete: failed', cancelled: 'is complete: cancelled',
  cleared: 'is complete: dropped from the queue', released: 'is complete: given up before it entered',
  lost: 'is complete: lost with its process',
};

export class Known {
  constructor() {
    this.sessions = new Map(); // id -> {id, lead, text, length, phase, covered, story}
    this.runs = new Map(); // id -> {id, session, prompt, state, path, lead, covered, complete, times}
    this.completes = 0; // how many RunCompletes the page has seen, and how many runs had more than one
    this.twice = 0;
    this.busy = new Map(); // what this page has asked for its runs, if the session is busy
    this.holes = new Set(); // sessions whose text has a hole, to be asked for
    this.doubtful = new Set(); // runs that the server may have forgotten, to be asked for
    this.edited = new Set(); // runs whose prompt was changed, to be asked for
  }

  session(id) {
    if (!this.sessions.has(id)) {
      this.sessions.set(id, {id, lead: null, text: '', length: 0, phase: null, covered: false, story: []});
    }
    return this.sessions.get(id);
  }

  run(id, session) {
    if (!this.runs.has(id)) {
      this.session(session);
      this.runs.set(id, {
        id, session, prompt: null, seq: 0, rank: 0, held: false, moves: 0, edits: 0, state: 'accepted', path: ['accepted'], lead: null, covered: false,
        complete: null, times: 0, at: Date.now(), recalled: false, busy: this.busy.get(id) ?? null,
      });
      this.busy.delete(id);
    }
    return this.runs.get(id);
  }

  of(session, ...states) {
    const found = [...this.runs.values()].filter(run => run.session === session && states.includes(run.state));
    return found.sort((one, other) => one.seq - other.seq);
  }

  // The waiting runs, in the order of their positions.
  line(session, ...states) {
    return this.of(session, ...states).sort((one, other) => one.rank - other.rank);
  }

  move(run, state) {
    if (RANK[state] <= RANK[run.state] && run.state !== state) return;
    if (run.state !== state) run.path.push(state);
    run.state = state;
    if (state === 'active' || state === 'complete') run.held = false;
  }

  tell(session, what, run = null, kind = '') {
    const {story} = this.session(session);
    story.unshift({what, run, kind});
    if (story.length > TOLD) story.pop();
  }

  // Events.

  take(event, data) {
    switch (event) {
      case 'snapshot': return this.look(data);
      case 'run.accept': return this.accept(data);
      case 'run.enter': return this.enter(data);
      case 'run.handoff': return this.handoff(data);
      case 'run.fold': return this.fold(data);
      case 'run.complete': return this.complete(data);
      case 'session.cancel': return this.cover(data);
      case 'session.clear': return data.runs === null ? this.tell(data.session_id, 'The queue is cleared.') : undefined;
      case 'session.hold': return this.hold(data, true);
      case 'session.resume': return this.hold(data, false);
      case 'run.move': return this.reorder(data);
      case 'run.edit': return this.edit(data);
      case 'delta': return this.write(data);
      default: return undefined;
    }
  }

  accept(data) {
    const run = this.run(data.run_id, data.session_id);
    run.prompt = data.prompt ?? run.prompt;
    run.seq = run.rank = data.seq;
    this.tell(run.session, `is accepted, as number ${data.seq}`, run);
  }

  enter(data) {
    const run = this.run(data.run_id, data.session_id);
    this.tell(run.session, ENTERED[data.state], run, data.state === 'cancel_on_entry' ? 'stop' : '');
    if (data.state === 'active') this.begin(run);
    else this.move(run, data.state);
  }

  handoff(data) {
    const run = this.run(data.run_id, data.session_id);
    this.tell(run.session, 'is next: its turn begins', run);
    this.begin(run);
  }

  begin(run) {
    if (run.state === 'complete' || (run.state === 'active' && run.lead)) return;
    this.move(run, 'active');
    run.lead = run.id;
    const session = this.session(run.session);
    Object.assign(session, {lead: run.id, text: '', length: 0, phase: 'running', covered: false});
  }

  fold(data) {
    const run = this.run(data.run_id, data.session_id);
    this.move(run, 'active');
    run.lead = data.into;
    this.tell(run.session, 'joins the running turn', run);
  }

  cover(data) {
    const session = this.session(data.session_id);
    const covered = this.of(session.id, 'accepted', 'cancel_on_entry', 'queued', 'active')
      .filter(run => data.runs === null || data.runs.includes(run.id));
    for (const run of covered) run.covered = true;
    const what = covered.length === 1 ? 'the run' : `the ${covered.length} runs`;
    const [only] = covered;
    if (data.runs !== null && covered.length && covered.every(run => run.state === 'active')) {
      this.tell(session.id, 'The turn is stopped. The cancel covers nothing else.', null, 'stop');
    } else if (data.runs !== null && covered.length === 1) this.tell(session.id, 'is taken back', only, 'stop');
    else if (covered.length) this.tell(session.id, `A cancel covers ${what} accepted before it, and none accepted later.`, null, 'stop');
    session.covered = session.lead !== null && this.runs.get(session.lead)?.covered === true;
  }

  // The line: holds, moves, edits.

  hold(data, held) {
    const changed = this.of(data.session_id, 'accepted', 'queued')
      .filter(run => (data.runs === null || data.runs.includes(run.id)) && run.held !== held);
    for (const run of changed) run.held = held;
    const [only] = changed;
    if (changed.length === 1) this.tell(only.session, held ? 'is held: it keeps its position and does not start' : 'is resumed', only, held ? 'held' : '');
    else if (changed.length) this.tell(data.session_id, `${changed.length} waiting runs are ${held ? 'held' : 'resumed'}.`, null, held ? 'held' : '');
  }

  // A move permutes the ranks of what waits and invents none, so what is accepted later stays behind.
  reorder(data) {
    const run = this.run(data.run_id, data.session_id);
    run.moves += 1;
    const line = this.line(run.session, 'accepted', 'queued');
    const ranks = line.map(each => each.rank);
    const others = line.filter(each => each !== run);
    const at = others.findIndex(each => each.id === data.before);
    others.splice(at < 0 ? others.length : at, 0, run);
    others.forEach((each, index) => { each.rank = ranks[index]; });
    const before = this.runs.get(data.before);
    this.tell(run.session, before ? `is moved before “${before.prompt ?? before.id}”` : 'is moved to the last position', run);
  }

  edit(data) {
    const run = this.run(data.run_id, data.session_id);
    run.edits += 1;
    this.edited.add(run.id);
    this.tell(run.session, 'is edited', run);
  }

  complete(data) {
    const run = this.run(data.run_id, data.session_id);
    this.move(run, 'complete');
    run.seq = data.seq;
    const recalled = run.recalled;
    Object.assign(run, {complete: data, recalled: false, at: Date.now()});
    if (recalled) return; // the server was asked for it before the stream told of it
    run.times += 1;
    this.completes += 1;
    if (run.times === 2) this.twice += 1;
    this.tell(run.session, ENDED[data.outcome] ?? 'is complete', run, data.outcome);
    const session = this.session(data.session_id);
    // The text of a turn may not have been streamed to here, or not all of it; this is all of it.
    if (session.lead === run.id) Object.assign(session, {lead: null, phase: null, covered: false, text: data.text});
    this.forget();
  }

  // What completed before this page was opened, as the server answers for it.
  recall(data) {
    const run = this.run(data.run_id, data.session_id);
    if (run.complete || !data.complete) return;
    this.move(run, 'complete');
    Object.assign(run, {
      prompt: data.prompt ?? run.prompt, seq: data.seq, complete: data.complete, times: 1, recalled: true, at: 0,
    });
    this.completes += 1;
    this.forget();
  }

  forget() {
    const complete = [...this.runs.values()].filter(run => run.complete);
    for (const run of complete.slice(0, Math.max(0, complete.length - KEPT))) this.runs.delete(run.id);
  }

  // Offsets count characters; a JavaScript string counts some characters twice.
  write(data) {
    const session = this.session(data.session_id);
    if (session.lead !== data.run_id) return;
    const characters = [...data.text];
    const had = session.length - data.offset; // this many of them are known
    if (had < 0) { this.holes.add(session.id); return; }
    const fresh = characters.slice(had);
    session.text += fresh.join('');
    session.length += fresh.length;
  }

  // Snapshots.

  look(data) {
    const listed = new Set();
    for (const view of data.sessions) this.see(view, listed);
    // It has ended, and how it ended was not told: then the server has begun anew, and is asked what it knows.
    for (const run of this.runs.values()) if (data.reset && !run.complete && !listed.has(run.id)) this.doubtful.add(run.id);
    for (const session of this.sessions.values()) {
      if (session.lead !== null && !listed.has(session.lead)) Object.assign(session, {lead: null, phase: null});
    }
  }

  lose(id) {
    const run = this.runs.get(id);
    if (!run || run.complete) return;
    run.path.push('complete');
    Object.assign(run, {state: 'complete', complete: {outcome: 'unknown', error: null, folded_into: null}});
    this.tell(run.session, 'is forgotten by the server', run, 'lost');
  }

  see(view, listed = new Set()) {
    const session = this.session(view.session_id);
    const every = [...view.accepted, ...view.settling, ...view.queued, ...view.folded];
    for (const each of view.active ? [view.active, ...every] : every) {
      listed.add(each.run_id);
      const run = this.run(each.run_id, each.session_id);
      Object.assign(run, {prompt: each.prompt || run.prompt, seq: each.seq, rank: each.seq, held: each.held});
      this.move(run, each.state);
    }
    // What waits gets its sequence numbers as ranks, in the order of their positions: what is accepted later is behind.
    const line = view.waiting.map(id => this.runs.get(id));
    const ranks = line.map(run => run.seq).sort((one, other) => one - other);
    line.forEach((run, index) => { run.rank = ranks[index]; });
    for (const each of view.folded) this.runs.get(each.run_id).lead = view.active.run_id;
    if (view.active) this.runs.get(view.active.run_id).lead = view.active.run_id;
    Object.assign(session, {
      lead: view.active?.run_id ?? null, text: view.active ? view.text : session.text,
      length: view.active ? [...view.text].length : session.length, phase: view.phase, covered: view.covered,
    });
    this.holes.delete(session.id);
  }
}
