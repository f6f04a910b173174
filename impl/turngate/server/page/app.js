// The live page: follows the event stream, draws what it knows, and sends what a person wants.

import {draw} from './draw.js';
import {Known} from './state.js';
import {Stream} from './stream.js';

const $ = id => document.getElementById(id);
const LINK = {
  connecting: 'connecting', live: 'live', reconnecting: 'line cut, reconnecting', refused: 'not authorized',
};

const LOADED = 50, PAGES = 5;
const SHOWN = 200; // characters of a prompt, as in the server's lists

const known = new Known();
const loaded = new Set(); // sessions whose complete runs were loaded
const opened = JSON.parse(sessionStorage.getItem('turngate.opened') ?? '["demo"]'); // the last one is shown
const page = {session: opened.at(-1), focus: null, followed: true, editing: null, drag: null};
let token = new URLSearchParams(location.hash.slice(1)).get('token') ?? sessionStorage.getItem('turngate.token') ?? '';
if (location.hash) history.replaceState(null, '', location.pathname);

let drawn = false;
function redraw() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => { drawn = false; draw(known, page); });
}

// Hearing.

function notice(text) {
  $('notice').textContent = text;
  $('notice').hidden = !text;
}

function heard(event, data) {
  if (event === 'snapshot' && data.reset) {
    notice('The server has restarted, or no longer knows where this page was. The page was loaded again. Runs that the server no longer knows are shown as unknown.');
  } else if (event === 'gap') {
    notice('This page fell behind, and some text was skipped. No RunComplete is missing.');
  }
  known.take(event, data);
  if (page.followed && data.session_id === page.session && data.run_id && event.startsWith('run.')) {
    const run = known.runs.get(data.run_id);
    const current = known.runs.get(page.focus);
    if (run && (!current || current.complete || event === 'run.accept' || current.session !== page.session)) page.focus = run.id;
  }
  if (event === 'snapshot' && !known.runs.has(page.focus)) page.focus = inFlight(page.session);
  for (const session of known.holes) fillHole(session);
  for (const run of known.doubtful) resolve(run);
  for (const run of known.edited) reread(run);
  for (const look of [...watching]) look();
  redraw();
}

// Ask for the new prompt of a run that was edited. If it is edited again meanwhile, that asks again.
async function reread(id) {
  known.edited.delete(id);
  const edits = known.runs.get(id)?.edits;
  const {ok, data} = await call('GET', `runs/${encodeURIComponent(id)}`);
  const run = known.runs.get(id);
  if (!run || run.edits !== edits) return;
  if (ok) run.prompt = shown(data.prompt) ?? run.prompt;
  else known.edited.add(id); // asked again when the line is back
  redraw();
}

const watching = new Set();

// Wait until something that was asked for has also been told, but not forever.
function told(condition) {
  return new Promise(done => {
    const look = () => { if (condition()) finish(); };
    const late = setTimeout(() => finish(), 2_000);
    const finish = () => { watching.delete(look); clearTimeout(late); done(); };
    watching.add(look);
    look();
  });
}

async function fillHole(session) {
  known.holes.delete(session);
  const answer = await call('GET', `sessions/${encodeURIComponent(session)}`);
  if (answer.ok && answer.data.active) known.see(answer.data);
  redraw();
}

async function resolve(run) {
  known.doubtful.delete(run);
  const answer = await call('GET', `runs/${encodeURIComponent(run)}`);
  if (answer.data.complete && !known.runs.get(run)?.complete) known.complete(answer.data.complete);
  else if (answer.status === 404) known.lose(run);
  redraw();
}

const stream = new Stream({
  url: 'v1/events',
  headers: authorized,
  onEvent: heard,
  onLink(link) {
    $('link').dataset.link = link;
    $('link').textContent = LINK[link];
    $('login').hidden = link !== 'refused';
    if (link === 'refused') $('token').focus();
    if (link !== 'live') return;
    for (const session of opened) load(session);
    for (const run of known.edited) reread(run);
  },
});

// Saying.

function authorized() {
  return token ? {Authorization: `Bearer ${token}`} : {};
}

async function call(method, path, body) {
  const headers = {...authorized(), ...(body ? {'Content-Type': 'application/json'} : {})};
  try {
    const response = await fetch(`v1/${path}`, {method, headers, body: body && JSON.stringify(body)});
    return {ok: response.ok, status: response.status, data: await response.json()};
  } catch {
    return {ok: false, data: {title: 'The server does not answer'}};
  }
}

function tell(text, bad = false) {
  $('said').textContent = text;
  $('said').classList.toggle('bad', bad);
}

const runs = count => count === 1 ? '1 run' : `${count} runs`;

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), byte => byte.toString(16).padStart(2, '0')).join('');
}

async function send() {
  const prompt = $('prompt').value;
  if (!prompt.trim()) { tell('Type a prompt first.', true); return; }
  $('prompt').value = '';
  page.followed = true;
  const body = {prompt, when_busy: $('busy').value, run_id: `run-${newId()}`};
  known.busy.set(body.run_id, body.when_busy);
  const {ok, data} = await call('POST', `sessions/${encodeURIComponent(page.session)}/runs`, body);
  if (ok) { tell('Accepted.'); return; }
  known.busy.delete(body.run_id);
  tell(`Refused: ${data.detail ?? data.title}.`, true);
  $('prompt').value ||= prompt;
}

async function cancel() {
  const {ok, data} = await call('POST', `sessions/${encodeURIComponent(page.session)}/cancel`);
  if (!ok) tell(`Refused: ${data.detail ?? data.title}.`, true);
  else tell(data.covered.length ? `The cancel covers ${runs(data.covered.length)}. It does not cover what you send now.` : 'There was nothing to cancel.');
}

async function takeBack(run) {
  const {ok, data} = await call('POST', `runs/${encodeURIComponent(run)}/cancel?waiting_only=true`);
  if (!ok) refused({data});
  else tell(data.covered.length ? 'Taken back.' : 'Too late: its turn had begun.');
}

// The line: what waits is held, resumed, moved, edited and sent now. The page shows nothing of it before the server
// has told of it, so a refusal changes nothing.

const LATE = {active: 'its turn has begun', complete: 'it is complete', accepted: 'it has not entered yet'};

function refused({data}) {
  const name = String(data.type ?? '').split(':').at(-1);
  const why = name === 'not-waiting' ? LATE[data.state] : name === 'unknown-run' ? 'the server does not know it' : null;
  tell(`Refused: ${why ?? data.detail ?? data.title}.`, true);
}

function shown(prompt) {
  return prompt && prompt.length > SHOWN ? `${prompt.slice(0, SHOWN - 1)}…` : prompt;
}

async function hold(what, path) {
  const answer = await call('POST', `${path}/${what}`);
  if (!answer.ok) refused(answer);
  else if (!answer.data.runs.length) tell(what === 'hold' ? 'There was nothing to hold.' : 'There was nothing to resume.');
  else tell(what === 'hold' ? `Held: ${runs(answer.data.runs.length)}. What you send now is not held.` : `Resumed: ${runs(answer.data.runs.length)}.`);
}

const ofSession = () => `sessions/${encodeURIComponent(page.session)}`;
const ofRun = run => `runs/${encodeURIComponent(run)}`;

// Stop the turn that is shown, and no other: if it has ended meanwhile, nothing happens.
async function stop() {
  const turn = known.session(page.session).lead;
  if (!turn) { tell('No turn runs.'); return; }
  const answer = await call('POST', `${ofSession()}/stop`, {turn});
  if (!answer.ok) refused(answer);
  else if (!answer.data.covered.length) tell('That turn had already ended. Nothing was stopped.');
  else tell(answer.data.held.length ? `Stopped. Held: ${runs(answer.data.held.length)}. Press Resume all to go on.` : 'Stopped.');
}

async function sendNow(run) {
  const turn = known.session(page.session).lead;
  const answer = await call('POST', `${ofRun(run)}/send-now`, turn ? {turn} : undefined);
  if (!answer.ok) refused(answer);
  else if (turn && !answer.data.covered.length && answer.data.waiting.includes(run)) tell('The turn that you saw had already ended. Nothing was done.');
  else tell(answer.data.covered.length ? 'Sent now. The turn before it is being stopped.' : 'Sent now.');
}

let moving = Promise.resolve();

// Move a run to a position (counted from 0) that `where` finds in the line as it is when its move comes.
function move(run, where) {
  moving = moving.then(async () => {
    const line = known.line(page.session, 'queued').map(each => each.id);
    const others = line.filter(id => id !== run);
    const to = where(others, line.indexOf(run));
    if (!line.includes(run) || to < 0 || to > others.length || to === line.indexOf(run)) return;
    const moves = known.runs.get(run).moves;
    const answer = await call('POST', `${ofRun(run)}/move`, to < others.length ? {before: others[to]} : {to: 'last'});
    if (!answer.ok) { refused(answer); return; }
    tell(`Moved to position ${to + 1} of ${line.length}.`);
    await told(() => known.runs.get(run)?.moves !== moves || known.runs.get(run)?.state !== 'queued');
  });
}

const item = run => [...$('queue').children].find(each => each.dataset.run === run);

async function edit(run) {
  if (page.editing) { item(page.editing.run)?.querySelector('textarea').focus(); tell('Finish the other edit first.', true); return; }
  const {session, edits} = known.runs.get(run);
  const answer = await call('GET', ofRun(run)); // lists show only the beginning of a long prompt
  if (!answer.ok) { refused(answer); return; }
  if (answer.data.state !== 'queued') { tell(`Refused: ${LATE[answer.data.state]}.`, true); return; }
  if (page.editing) return;
  page.editing = {run, session, edits};
  draw(known, page);
  const text = item(run)?.querySelector('textarea');
  if (!text) { page.editing = null; draw(known, page); return; }
  text.value = answer.data.prompt ?? '';
  text.focus();
}

function leave() {
  const {run} = page.editing;
  page.editing = null;
  draw(known, page);
  (item(run)?.querySelector('[data-do=edit]') ?? $('prompt')).focus();
}

async function save() {
  const {run} = page.editing, text = item(run).querySelector('textarea').value;
  if (item(run).classList.contains('gone')) {
    $('prompt').value = [$('prompt').value, text].filter(Boolean).join('\n');
    leave();
    return;
  }
  const answer = await call('PATCH', ofRun(run), {prompt: text});
  if (!answer.ok) { refused(answer); return; } // the text stays where it was typed
  tell('Saved.');
  if (page.editing?.run === run) leave();
}

// Dragging. The list has the pointer, since its items may be replaced meanwhile.

function drag(event) {
  const grip = event.target.closest('.grip');
  if (!grip || event.button !== 0) return;
  page.drag = {run: grip.dataset.run, before: undefined};
  $('queue').setPointerCapture(event.pointerId);
}

function dragOver(event) {
  if (!page.drag) return;
  const list = $('queue'), box = list.getBoundingClientRect();
  if (event.clientY < box.top + 24) list.scrollTop -= 12;
  else if (event.clientY > box.bottom - 24) list.scrollTop += 12;
  const below = [...list.children].filter(each => each.dataset.run !== page.drag.run)
    .find(each => { const {top, height} = each.getBoundingClientRect(); return event.clientY < top + height / 2; });
  page.drag.before = below?.dataset.run ?? null;
  redraw();
}

function drop() {
  const {run, before} = page.drag ?? {};
  page.drag = null;
  redraw();
  if (run && before !== undefined) move(run, others => before === null ? others.length : others.indexOf(before));
}

function undrag() {
  page.drag = null;
  redraw();
}

// Load what completed in a session before this page was opened: the newest of the runs that have messages.
async function load(session) {
  if (loaded.has(session)) return;
  loaded.add(session);
  const ids = new Set();
  const path = `sessions/${encodeURIComponent(session)}/messages?limit=1000`;
  for (let next = '', pages = 0; next !== null && pages < PAGES; pages += 1) {
    const {ok, data} = await call('GET', next ? `${path}&after=${encodeURIComponent(next)}` : path);
    if (!ok) { loaded.delete(session); return; }
    for (const message of data.messages) ids.add(message.run_id);
    next = data.next;
  }
  const newest = [...ids].slice(-LOADED).filter(id => !known.runs.get(id)?.complete);
  const answers = await Promise.all(newest.map(id => call('GET', `runs/${encodeURIComponent(id)}`)));
  for (const {ok, data} of answers) if (ok) known.recall(data);
  redraw();
}

function inFlight(session) {
  return known.of(session, 'active', 'queued', 'accepted')[0]?.id ?? null;
}

function open(session) {
  page.session = session;
  if (opened.includes(session)) opened.splice(opened.indexOf(session), 1);
  opened.push(session);
  sessionStorage.setItem('turngate.opened', JSON.stringify(opened));
  page.focus = inFlight(session);
  page.followed = true;
  known.session(session);
  load(session);
  redraw();
}

document.addEventListener('click', event => {
  const button = event.target.closest('[data-do]');
  if (!button) return;
  if (button.dataset.do === 'session') open(button.dataset.session);
  else if (button.dataset.do === 'take-back') takeBack(button.dataset.run);
  else if (button.dataset.do === 'hold-run') hold('hold', ofRun(button.dataset.run));
  else if (button.dataset.do === 'resume-run') hold('resume', ofRun(button.dataset.run));
  else if (button.dataset.do === 'now') sendNow(button.dataset.run);
  else if (button.dataset.do === 'edit') edit(button.dataset.run);
  else if (button.dataset.do === 'save') save();
  else if (button.dataset.do === 'leave') leave();
  else if (button.dataset.do === 'focus') { page.focus = button.dataset.run; page.followed = false; redraw(); }
});
document.addEventListener('keydown', event => {
  if (event.isComposing) return;
  const within = event.target.closest('#queue > li');
  if (event.key === 'Escape') {
    event.preventDefault();
    if (page.drag) undrag();
    else if (within?.classList.contains('editing')) leave();
    else cancel();
  } else if (event.key === '.' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    stop();
  } else if (within) inLine(event, within);
});

// Keys on what waits: arrows go from one to another, and with Alt they move it.
function inLine(event, within) {
  if (within.classList.contains('editing')) {
    if (event.key === 'Enter' && !event.shiftKey && event.target.matches('textarea')) { event.preventDefault(); save(); }
    return;
  }
  const {run} = within.dataset;
  const step = {ArrowUp: -1, ArrowDown: 1}[event.key];
  if (event.altKey && step) move(run, (others, at) => at + step);
  else if (event.altKey && event.key === 'Home') move(run, () => 0);
  else if (event.altKey && event.key === 'End') move(run, others => others.length);
  else if (step) {
    const next = step < 0 ? within.previousElementSibling : within.nextElementSibling;
    (next?.querySelector(`[data-do="${event.target.dataset.do}"]`) ?? next?.querySelector('button'))?.focus();
  } else return;
  event.preventDefault();
}
$('queue').addEventListener('pointerdown', drag);
$('queue').addEventListener('pointermove', dragOver);
$('queue').addEventListener('pointerup', drop);
$('queue').addEventListener('pointercancel', undrag);
$('stop').addEventListener('click', stop);
$('hold').addEventListener('click', () => hold('hold', ofSession()));
$('resume').addEventListener('click', () => hold('resume', ofSession()));
$('cancel').addEventListener('click', cancel);
$('prompt').addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$('send').addEventListener('submit', event => { event.preventDefault(); send(); });
$('open').addEventListener('submit', event => {
  event.preventDefault();
  const name = $('other').value.trim();
  if (name) { open(name); $('other').value = ''; $('prompt').focus(); }
});
$('login').addEventListener('submit', event => {
  event.preventDefault();
  token = $('token').value;
  sessionStorage.setItem('turngate.token', token);
  stream.follow();
});
if (token) sessionStorage.setItem('turngate.token', token);
for (const session of opened) known.session(session);
draw(known, page);
$('prompt').focus();
stream.follow();
