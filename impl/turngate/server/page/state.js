// What the page knows: runs and sessions, moved by events. Nothing here draws.
//
// A run never goes back: behind a gap, or when a snapshot and an event say the same, what is known stays.

const RANK = {accepted: 0, cancel_on_entry: 1, queued: 1, active: 2, complete: 3};
const KEPT = 500; // complete runs; the oldest go first

export class Known {
  constructor() {
    this.sessions = new Map(); // id -> {id, lead, text, length, phase, covered}
    this.runs = new Map(); // id -> {id, session, prompt, state, path, lead, covered, complete, times}
    this.completes = 0; // how many RunCompletes the page has seen, and how many runs had more than one
    this.twice = 0;
    this.holes = new Set(); // sessions whose text has a hole, to be asked for
  }

  session(id) {
    if (!this.sessions.has(id)) {
      this.sessions.set(id, {id, lead: null, text: '', length: 0, phase: null, covered: false});
    }
    return this.sessions.get(id);
  }

  run(id, session) {
    if (!this.runs.has(id)) {
      this.session(session);
      this.runs.set(id, {
        id, session, prompt: null, seq: 0, state: 'accepted', path: ['accepted'], lead: null, covered: false,
        complete: null, times: 0, at: Date.now(),
      });
    }
    return this.runs.get(id);
  }

  of(session, ...states) {
    const found = [...this.runs.values()].filter(run => run.session === session && states.includes(run.state));
    return found.sort((one, other) => one.seq - other.seq);
  }

  move(run, state) {
    if (RANK[state] <= RANK[run.state] && run.state !== state) return;
    if (run.state !== state) run.path.push(state);
    run.state = state;
  }

  // Events.

  take(event, data) {
    switch (event) {
      case 'snapshot': return this.look(data);
      case 'run.accept': return this.accept(data);
      case 'run.enter': return this.enter(data);
      case 'run.handoff': return this.begin(this.run(data.run_id, data.session_id));
      case 'run.fold': return this.fold(data);
      case 'run.complete': return this.complete(data);
      case 'session.cancel': return this.cover(data);
      case 'delta': return this.write(data);
      default: return undefined;
    }
  }

  accept(data) {
    const run = this.run(data.run_id, data.session_id);
    run.prompt = data.prompt ?? run.prompt;
    run.seq = data.seq;
  }

  enter(data) {
    const run = this.run(data.run_id, data.session_id);
    if (data.state === 'active') this.begin(run);
    else this.move(run, data.state);
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
  }

  cover(data) {
    const session = this.session(data.session_id);
    for (const run of this.of(session.id, 'accepted', 'cancel_on_entry', 'queued', 'active')) {
      if (data.runs === null || data.runs.includes(run.id)) run.covered = true;
    }
    session.covered = session.lead !== null && this.runs.get(session.lead)?.covered === true;
  }

  complete(data) {
    const run = this.run(data.run_id, data.session_id);
    this.move(run, 'complete');
    run.seq = data.seq;
    run.complete = data;
    run.times += 1;
    run.at = Date.now();
    this.completes += 1;
    if (run.times === 2) this.twice += 1;
    const session = this.session(data.session_id);
    if (session.lead === run.id) Object.assign(session, {lead: null, phase: null, covered: false});
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
    const had = session.length - data.offset; // so many of them are known
    if (had < 0) { this.holes.add(session.id); return; }
    const fresh = characters.slice(had);
    session.text += fresh.join('');
    session.length += fresh.length;
  }

  // Snapshots.

  look(data) {
    const listed = new Set();
    for (const view of data.sessions) this.see(view, listed);
    for (const run of this.runs.values()) {
      if (run.complete || listed.has(run.id)) continue;
      // It is over, and how it ended was not told: that happens only when the server has begun anew.
      run.path.push('complete');
      Object.assign(run, {state: 'complete', complete: {outcome: 'unknown', error: null, folded_into: null}});
    }
    for (const session of this.sessions.values()) {
      if (session.lead !== null && !listed.has(session.lead)) Object.assign(session, {lead: null, phase: null});
    }
  }

  see(view, listed = new Set()) {
    const session = this.session(view.session_id);
    const every = [...view.accepted, ...view.settling, ...view.queued, ...view.folded];
    for (const each of view.active ? [view.active, ...every] : every) {
      listed.add(each.run_id);
      const run = this.run(each.run_id, each.session_id);
      Object.assign(run, {prompt: each.prompt || run.prompt, seq: each.seq});
      this.move(run, each.state);
    }
    for (const each of view.folded) this.runs.get(each.run_id).lead = view.active.run_id;
    if (view.active) this.runs.get(view.active.run_id).lead = view.active.run_id;
    Object.assign(session, {
      lead: view.active?.run_id ?? null, text: view.active ? view.text : session.text,
      length: view.active ? [...view.text].length : session.length, phase: view.phase, covered: view.covered,
    });
    this.holes.delete(session.id);
  }
}
