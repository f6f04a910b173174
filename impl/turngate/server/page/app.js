// The live page: follows the event stream, draws what it knows, and sends what a person wants.

import {draw} from './draw.js';
import {Known} from './state.js';
import {Stream} from './stream.js';

const $ = id => document.getElementById(id);
const LINK = {
  connecting: 'connecting', live: 'live', reconnecting: 'line cut, reconnecting', refused: 'not authorized',
};

const LOADED = 50, PAGES = 5;

const known = new Known();
const loaded = new Set(); // sessions whose complete runs were loaded
const opened = JSON.parse(sessionStorage.getItem('turngate.opened') ?? '["demo"]'); // the last one is shown
const page = {session: opened.at(-1), focus: null, followed: true};
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
    notice('The server was restarted, or has forgotten where this page was. What it shows was taken anew; how runs ended that it no longer knows is unknown.');
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
  redraw();
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
    if (link === 'live') for (const session of opened) load(session);
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
  if (!prompt.trim()) { tell('Say something first.', true); return; }
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
  else tell(data.covered.length ? `The cancel covers ${runs(data.covered.length)}. What you send now is not touched by it.` : 'There was nothing to cancel.');
}

async function takeBack(run) {
  const {ok, data} = await call('POST', `runs/${encodeURIComponent(run)}/cancel?waiting_only=true`);
  if (!ok) tell(`Refused: ${data.detail ?? data.title}.`, true);
  else tell(data.covered.length ? 'Taken back.' : 'Too late: its turn had begun.');
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
  else if (button.dataset.do === 'focus') { page.focus = button.dataset.run; page.followed = false; redraw(); }
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape' && !event.isComposing) { event.preventDefault(); cancel(); }
});
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
