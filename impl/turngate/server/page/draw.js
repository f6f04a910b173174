// Drawing what is known. What users and servers sent is put in as text, never as markup.

const $ = id => document.getElementById(id);
const SHOWN = 100;
const STATE_SAID = {
  accepted: 'is accepted: it has its number, and nothing has started',
  cancel_on_entry: 'was covered by a cancel before it entered; its messages are being written',
  queued: 'waits for its turn',
  active: 'is active: the runner works on it',
};
const BUSY_SAID = {fold: ', or joins the one that runs if the agent asks', queue: ' and joins no other'};
const OUTCOME_SAID = {
  finished: 'finished', failed: 'failed', cancelled: 'was cancelled', cleared: 'was dropped from the queue',
  released: 'was given up before it entered', lost: 'was lost with its process',
  unknown: 'is gone: the server no longer knows it, so its outcome is unknown',
};

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

const tag = (kind, text = kind) => el('span', {className: `tag ${kind}`}, text);

// Replace the children of a list only where they differ, so that focus and selection stay where they are.
function fill(list, items) {
  items.forEach((item, index) => {
    const old = list.children[index];
    if (!old) list.append(item);
    else if (!old.isEqualNode(item)) {
      const held = old.contains(document.activeElement) ? focusPath(old) : null;
      old.replaceWith(item);
      if (held !== null) item.querySelectorAll('button')[held]?.focus();
    }
  });
  while (list.children.length > items.length) list.lastChild.remove();
}

const focusPath = item => [...item.querySelectorAll('button')].indexOf(document.activeElement);

// Like `fill`, for a list whose items change places: items are known by their run. The item that has the focus is
// never moved (the others move around it), and the one that is being edited is not replaced either.
function arrange(list, items, kept) {
  const focused = document.activeElement?.closest('#queue > li');
  const key = item => item.dataset.run;
  const old = new Map([...list.children].map(item => [key(item), item]));
  const nodes = items.map(item => {
    const was = old.get(key(item));
    if (was && (was.isEqualNode(item) || (key(item) === kept && was.classList.contains('editing')))) return was;
    if (was) {
      const named = was.contains(document.activeElement) ? document.activeElement.dataset.do : null;
      was.replaceWith(item);
      if (named) (item.querySelector(`[data-do="${named}"]`) ?? item.querySelector('button'))?.focus();
    }
    return item;
  });
  const wanted = new Set(nodes);
  let lost = null;
  for (const item of [...list.children]) {
    if (wanted.has(item)) continue;
    if (item.contains(document.activeElement)) lost = [...list.children].indexOf(item);
    item.remove();
  }
  const pin = nodes.find(item => item.contains(document.activeElement)) ?? null;
  const at = pin ? nodes.indexOf(pin) : nodes.length;
  if (nodes.some((item, index) => list.children[index] !== item)) {
    for (const item of nodes.slice(0, at)) list.insertBefore(item, pin);
    for (const item of nodes.slice(at + 1)) list.append(item);
  }
  // The item that had the focus is gone: its neighbour takes it, or the prompt.
  if (lost !== null && focused) (nodes[Math.min(lost, nodes.length - 1)]?.querySelector('button') ?? $('prompt')).focus();
}

function words(run) {
  return el('button', {className: 'words', type: 'button', 'data-do': 'focus', 'data-run': run.id, title: run.id},
    run.prompt ?? run.id);
}

export function draw(known, page) {
  sessions(known, page);
  turn(known, page);
  queue(known, page);
  life(known, page);
  done(known);
  story(known, page);
}

function story(known, page) {
  const {story: told} = known.session(page.session);
  $('story-empty').hidden = told.length > 0;
  fill($('story'), told.map(({what, run, kind}) => el('li', {className: kind},
    run ? el('strong', {}, run.prompt ?? run.id) : null, run ? ` ${what}` : what)));
}

function sessions(known, page) {
  fill($('sessions'), [...known.sessions.values()].map(session => {
    const waiting = known.of(session.id, 'queued');
    const held = waiting.filter(run => run.held).length;
    const what = [session.lead ? 'active' : 'idle', waiting.length ? `${waiting.length} waiting` : '', held ? `${held} held` : ''].filter(Boolean).join(', ');
    const button = el('button', {type: 'button', 'data-do': 'session', 'data-session': session.id,
      'aria-current': String(session.id === page.session)},
      el('span', {'aria-hidden': 'true'}, session.lead ? '●' : '○'),
      el('span', {className: 'name'}, session.id), el('span', {className: 'what'}, what));
    return el('li', {}, button);
  }));
  $('to').textContent = page.session;
}

function turn(known, page) {
  const session = known.session(page.session);
  const runs = known.of(session.id, 'active');
  const fresh = !session.lead && !session.text;
  $('guide').hidden = !fresh;
  $('turn').hidden = fresh;
  $('cancel').disabled = !known.of(session.id, 'accepted', 'cancel_on_entry', 'queued', 'active').length;
  $('turn').className = [session.lead ? 'running' : '', session.covered ? 'covered' : ''].join(' ').trim();
  const joined = runs.length > 1 ? `, ${runs.length - 1} joined it` : '';
  const holds = known.of(session.id, 'queued').some(run => run.held);
  $('stop').disabled = !session.lead || session.covered;
  $('phase').textContent = !session.lead ? `No turn runs${holds ? '; waiting prompts are held' : ''}. This is the text of the last one:`
    : session.covered ? 'A cancel covers this turn; it is being stopped.' : `A turn runs${joined}.`;
  fill($('lead'), runs.map(run => el('li', {className: run.id === page.focus ? 'run focused' : 'run', 'data-run': run.id},
    tag(run.lead === run.id ? 'lead' : 'folded'), words(run), run.covered ? tag('covered') : null)));
  const text = $('text'), atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
  if (text.textContent !== session.text) {
    text.textContent = session.text;
    if (atEnd) text.scrollTop = text.scrollHeight;
  }
}

function queue(known, page) {
  const waiting = known.line(page.session, 'queued');
  const held = waiting.filter(run => run.held).length;
  const editing = page.editing?.session === page.session ? page.editing : null;
  const dragged = waiting.some(run => run.id === page.drag?.run) ? page.drag : null;
  $('queue-count').textContent = waiting.length ? `(${waiting.length}${held ? `, ${held} held` : ''})` : '';
  $('queue-empty').hidden = waiting.length > 0 || editing !== null;
  $('queue-keys').hidden = waiting.length === 0;
  $('hold').disabled = held === waiting.length;
  $('resume').disabled = held === 0;
  $('queue').classList.toggle('drop-last', dragged !== null && dragged.before === null);
  const items = waiting.map((run, index) => editing?.run === run.id ? editor(run.id) : waits(run, index, page, dragged));
  // A prompt whose turn began while it was being edited: what was typed stays, until the person is done with it.
  const gone = editing && !waiting.some(run => run.id === editing.run);
  if (gone) items.unshift(editor(editing.run));
  arrange($('queue'), items, editing?.run);
  if (!editing) return;
  const item = [...$('queue').children].find(each => each.dataset.run === editing.run);
  const run = known.runs.get(editing.run);
  item.classList.toggle('gone', Boolean(gone));
  item.querySelector('[data-do=save]').textContent = gone ? 'Use as a new prompt' : 'Save';
  const warning = gone ? 'This prompt no longer waits, so it cannot be changed. Your text is kept here.'
    : run && run.edits > editing.edits ? 'This prompt has been edited elsewhere. Saving replaces that text.' : '';
  if (item.querySelector('.warning').textContent !== warning) item.querySelector('.warning').textContent = warning;
}

function waits(run, index, page, dragged) {
  const name = run.prompt ?? run.id;
  const act = (what, label, title) => el('button', {type: 'button', 'data-do': what, 'data-run': run.id,
    'aria-label': `${title}: ${name}`, title}, label);
  const kinds = ['run', run.held ? 'held' : '', run.id === page.focus ? 'focused' : '',
    dragged?.run === run.id ? 'dragged' : '', dragged?.before === run.id ? 'drop' : ''];
  return el('li', {className: kinds.filter(Boolean).join(' '), 'data-run': run.id, 'data-held': String(run.held)},
    el('button', {type: 'button', className: 'grip', 'data-do': 'grip', 'data-run': run.id,
      'aria-label': `Move, position ${index + 1}: ${name}`, 'aria-keyshortcuts': 'Alt+ArrowUp Alt+ArrowDown',
      title: 'Drag to move, or Alt and an arrow key'}, '⠿'),
    el('span', {className: 'place'}, String(index + 1)), words(run), run.held ? tag('held', '❚❚ held') : null,
    el('div', {className: 'acts'}, act('now', 'Send now', 'Send now'), act('edit', 'Edit', 'Edit'),
      run.held ? act('resume-run', 'Resume', 'Resume') : act('hold-run', 'Hold', 'Hold'), act('take-back', 'Take back', 'Take back')));
}

// The controls of an item that is being edited; its text is put in by the code that begins to edit.
function editor(id) {
  return el('li', {className: 'run editing', 'data-run': id},
    el('textarea', {rows: 3, 'aria-label': 'The prompt, edited. Enter saves, Escape discards the change.'}),
    el('p', {className: 'warning', role: 'status'}),
    el('div', {className: 'acts'}, el('button', {type: 'button', 'data-do': 'save', 'data-run': id}, 'Save'),
      el('button', {type: 'button', 'data-do': 'leave', 'data-run': id}, 'Discard')));
}

function life(known, page) {
  const run = known.runs.get(page.focus);
  const steps = run ? run.path.slice(1).map((state, index) => `${run.path[index]} ${state}`) : [];
  for (const state of document.querySelectorAll('.life [data-state]')) {
    const name = state.dataset.state, count = known.of(page.session, name).length;
    state.setAttribute('class', run?.state === name ? 'lit' : run?.path.includes(name) ? 'passed' : '');
    state.querySelector('.n').textContent = count ? String(count) : '';
  }
  for (const edge of document.querySelectorAll('.life [data-edge]')) {
    edge.setAttribute('class', steps.includes(edge.dataset.edge) ? 'passed' : '');
  }
  $('life-said').replaceChildren(...said(run));
}

function said(run) {
  if (!run) return ['The picture shows every state of a run. Send a prompt, and its run lights up here. Small numbers count the runs of this session.'];
  const name = el('strong', {}, `“${run.prompt ?? run.id}”`);
  if (run.complete) {
    const into = run.complete.folded_into ? ', in the turn that took it in' : '';
    return [name, ` ${OUTCOME_SAID[run.complete.outcome]}${into}.`];
  }
  const waits = run.held ? ', held until it is resumed or sent' : run.state === 'queued' ? BUSY_SAID[run.busy] ?? '' : '';
  const joined = run.lead && run.lead !== run.id ? ', in a turn that another run leads' : '';
  return [name, ` ${STATE_SAID[run.state]}${waits}${joined}${run.covered ? '; a cancel covers it' : ''}.`];
}

function done(known) {
  const complete = [...known.runs.values()].filter(run => run.complete).sort((one, other) => other.at - one.at || other.seq - one.seq);
  const flying = [...known.runs.values()].filter(run => !run.complete).length;
  const tally = $('tally');
  tally.dataset.twice = String(known.twice);
  tally.dataset.completes = String(known.completes);
  const count = known.completes === 1 ? '1 run is complete' : `${known.completes} runs are complete`;
  const rest = flying > 0 ? `; ${flying} in flight` : '';
  if (known.twice) tally.textContent = `${known.twice} ${known.twice === 1 ? 'run has' : 'runs have'} completed twice`;
  else if (known.completes) tally.textContent = `${count}, each exactly once${rest}`;
  else tally.textContent = 'No run has completed yet. Each will be counted here.';
  fill($('done'), complete.slice(0, SHOWN).map(run => {
    const {outcome, error, folded_into: into} = run.complete;
    const more = [run.session, into ? 'joined another run’s turn' : '', outcome === 'unknown' ? 'the server no longer knows it' : '', error ?? '']
      .filter(Boolean).join(' · ');
    return el('li', {className: run.times > 1 ? 'twice' : '', 'data-run': run.id, 'data-times': String(run.times), 'data-outcome': outcome},
      words(run), run.times > 1 ? tag('twice', `×${run.times}`) : tag(outcome), el('span', {className: 'more'}, more));
  }));
}
