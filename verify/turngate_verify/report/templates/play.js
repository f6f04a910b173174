"use strict";
// The address says everything: #MECHANISM/STEP.STEP.STEP, each step the number of an action. What is shown
// follows from it alone, so every position can be linked to, and going back is going back.

const $ = id => document.getElementById(id);
const ORDER = ["accept", "enter", "cancel", "cancel_run", "clear", "release", "again", "close", "fold", "end"];
const WHO = {caller: "callers", runner: "runners", store: "stores", session: "the session itself"};
let space, ahead = [];

async function unpack() {
  const packed = Uint8Array.from(atob($("space").textContent.trim()), each => each.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain).json();
}

const word = number => space.words[number];
const sound = () => space.mechanisms[0];
const chosen = name => space.mechanisms.find(each => each.name === name) || sound();

// The steps of a node: a map from the number of the action to the step.
function stepsOf(mechanism, node) {
  const flat = mechanism.steps[node], steps = new Map();
  for (let at = 0; at < flat.length; at += 4)
    steps.set(flat[at], {target: flat[at + 1], said: space.outcomes[flat[at + 2]].map(word),
                         broken: space.broken[flat[at + 3]].map(pair => pair.map(word))});
  return steps;
}

function viewOf(mechanism, node) {
  const [flat, calls] = mechanism.nodes[node], rows = new Map(), running = new Map();
  for (let at = 0; at < flat.length; at += 2) rows.set(word(flat[at]), word(flat[at + 1]));
  for (let at = 0; at < calls.length; at += 2) running.set(word(calls[at]), Boolean(calls[at + 1]));
  return {rows, running};
}

const action = number => {
  const [actor, name, run, how, told] = space.actions[number];
  return {number, actor, name, run, how, told};
};

// Take the steps of a path; what cannot be taken is marked as missing if the path is followed, or ends it.
function walk(mechanism, path, follow) {
  const moments = [];
  let node = 0, used = 0, closed = false;
  for (const number of path) {
    const steps = stepsOf(mechanism, node);
    const taken = follow ? formsOf(action(number)).find(form => steps.has(form)) : steps.has(number) ? number : null;
    if (taken === undefined || taken === null) {
      if (!follow) break;
      moments.push({action: action(number), node, said: [], broken: [], missing: true, view: viewOf(mechanism, node)});
      continue;
    }
    const step = steps.get(taken), doing = action(taken);
    node = step.target;
    used += ["cancel", "cancel_run"].includes(doing.name);
    closed = closed || doing.name === "close";
    moments.push({action: doing, node, said: step.said, broken: step.broken, view: viewOf(mechanism, node)});
  }
  return {moments, node, used, closed};
}

// What a step may be on the sound mechanism: there is no in-process accept, and a turn ends as it has to.
function formsOf(doing) {
  const like = change => {
    const want = {...doing, ...change};
    return space.actions.findIndex(([, name, run, how]) => name === want.name && run === want.run && how === want.how);
  };
  const forms = [doing.how === "in-process" ? like({how: "fold"}) : doing.number];
  if (doing.name === "end") forms.push(like({how: "canceled"}), like({how: "end_turn"}));
  if (doing.name === "written") forms.push(like({name: "settle"}));
  if (doing.name === "settle") forms.push(like({name: "written"}));
  return forms.filter(form => form >= 0);
}

function position() {
  const [name, steps = ""] = decodeURIComponent(location.hash.slice(1)).split("/");
  return {mechanism: chosen(name), path: steps.split(".").filter(Boolean).map(Number)};
}

function goTo(mechanism, path) {
  location.hash = `${mechanism.name}/${path.join(".")}`;
}

function element(tag, about = {}, ...inside) {
  const made = document.createElement(tag);
  Object.assign(made, about);
  made.append(...inside);
  return made;
}

// Drawing everything anew for a position.

function show() {
  const {mechanism, path} = position();
  const own = walk(mechanism, path, false), moments = own.moments;
  const kept = path.slice(0, moments.length);
  if (!(ahead.length >= kept.length && kept.every((each, nth) => each === ahead[nth]))) ahead = kept;
  const beside = mechanism === sound() ? null : walk(sound(), kept, true);
  $("mechanism").value = mechanism.name;
  $("flaw").textContent = `${mechanism.flaw} ${mechanism.states.toLocaleString("en")} states: ` +
    `${mechanism.prompts} prompts, ${mechanism.cancels} cancel${mechanism.cancels === 1 ? "" : "s"}.`;
  $("back").disabled = !kept.length;
  $("restart").disabled = !kept.length;
  $("again").disabled = ahead.length <= kept.length;
  $("shortest").disabled = !mechanism.way.length;
  showVerdict(moments, beside);
  showChoices(mechanism, kept, own);
  showState(mechanism, moments, beside);
  showPicture(mechanism, kept, moments, beside);
}

function showVerdict(moments, beside) {
  const last = moments.at(-1), said = [];
  for (const [property, what] of last ? last.broken : []) {
    said.push(element("p", {className: "verdict bad"}, element("b", {}, property), `: ${what}. `,
      element("span", {className: "soft"}, space.sentences[property])));
  }
  if (said.length && beside) {
    const now = beside.moments.at(-1);
    const instead = now.missing ? "there is no such step" : now.said.join(", ") || "nothing else happens";
    said.push(element("p", {className: "verdict"}, `What should have been: ${now.action.told}: ${instead}. ` +
      differences(last.view, now.view)));
  }
  $("verdict").replaceChildren(...said);
}

function differences(was, should) {
  const told = [];
  for (const [name, value] of should.rows) if (was.rows.get(name) !== value) told.push(`${name}: ${value}`);
  return told.length ? `Then: ${told.join("; ")}.` : "";
}

function showChoices(mechanism, path, {moments, node, used, closed}) {
  const isBroken = moments.some(each => each.broken.length);
  const groups = new Map();
  const possible = [...stepsOf(mechanism, node).keys()].map(action);
  possible.sort((one, other) => ORDER.indexOf(one.name) - ORDER.indexOf(other.name) || one.told.localeCompare(other.told));
  for (const doing of possible) {
    const number = doing.number;
    const spent = ["cancel", "cancel_run"].includes(doing.name) && used >= mechanism.cancels;
    if (spent || (closed && ["accept", "close"].includes(doing.name))) continue;
    const button = element("button", {type: "button"}, doing.told);
    button.dataset.action = number;
    button.addEventListener("click", () => goTo(mechanism, [...path, number]));
    groups.set(doing.actor, [...(groups.get(doing.actor) || []), button]);
  }
  const parts = [element("h2", {}, "What could happen next")];
  for (const [actor, buttons] of groups) parts.push(element("h3", {}, WHO[actor]), ...buttons);
  if (!groups.size) parts.push(element("p", {className: "soft"}, isBroken ?
    "A promise is broken, and nothing is promised after that. Go back, or begin again." :
    "Nothing more within these bounds. Go back, or begin again."));
  $("choices").replaceChildren(...parts);
}

function showState(mechanism, moments, beside) {
  const sides = [[mechanism.title, mechanism === sound() ? "sound" : "broken", moments]];
  if (beside) sides.push([sound().title, "sound", beside.moments]);
  const drawn = sides.map(([title, kind, all]) => {
    const now = all.at(-1), before = all.length > 1 ? all.at(-2).view.rows : new Map();
    const after = now ? now.view.rows : new Map(), body = element("tbody");
    const names = [...new Set([...before.keys(), ...after.keys()])];
    names.sort((one, other) => one.startsWith("run ") - other.startsWith("run "));
    for (const name of names) {
      const was = before.get(name) || "-", is = after.get(name) || "-";
      body.append(element("tr", {className: was === is ? "" : "changed"}, element("th", {}, name),
        element("td", {}, was), element("td", {}, is)));
    }
    if (!names.length) body.append(element("tr", {}, element("td", {colSpan: 3, className: "soft"}, "nothing is remembered")));
    const head = element("tr", {}, element("th"), element("th", {}, "before"), element("th", {}, "after"));
    const said = !now ? "nothing has happened yet" :
      `${now.action.told}: ${now.missing ? "there is no such step here" : now.said.join(", ") || "nothing to be seen from outside"}`;
    return element("div", {className: kind}, element("h3", {}, title), element("p", {}, said),
      element("table", {}, element("thead", {}, head), body));
  });
  $("state").replaceChildren(element("h2", {}, "The state"), element("div", {className: "sides"}, ...drawn));
}

// The picture: a row for each step, and lanes for callers, runs, runner and memory.

const runsIn = all => [...new Set(all.flatMap(each => [...each.view.rows.keys()]).filter(name => name.startsWith("run ")))];

function showPicture(mechanism, path, moments, beside) {
  const sides = [[mechanism.title, moments], ...(beside ? [[sound().title, beside.moments]] : [])];
  const runs = runsIn(sides.flatMap(([, all]) => all)).sort();
  const titles = element("tr", {}, element("th", {colSpan: 2}));
  const lanes = element("tr", {}, element("th", {}, "#"), element("th", {}, "step"));
  for (const [title] of sides) {
    titles.append(element("th", {colSpan: runs.length + 3}, title));
    lanes.append(...["callers", ...runs, "runner", "the session remembers"].map(name => element("th", {}, name)));
  }
  const body = element("tbody");
  moments.forEach((moment, nth) => {
    const row = element("tr", {}, element("td", {}, String(nth + 1)),
      element("td", {className: "who"}, moment.action.told, element("small", {}, moment.action.actor)));
    row.classList.toggle("cancel", cancels(moment.action));
    row.classList.toggle("bad", moment.broken.length > 0);
    sides.forEach(([, all], side) => row.append(...cells(all, nth, runs, side ? "right" : "left")));
    row.title = "go back to here";
    row.addEventListener("click", () => goTo(mechanism, path.slice(0, nth + 1)));
    body.append(row);
  });
  $("picture").replaceChildren(element("table", {}, element("thead", {}, titles, lanes), body));
}

const cancels = ({name, how}) => ["cancel", "cancel_run", "close"].includes(name) || how === "interrupt";

function cells(all, nth, runs, side) {
  const {view, said, missing} = all[nth], before = nth ? all[nth - 1].view : {rows: new Map(), running: new Map()};
  const done = said.filter(each => each.startsWith("RunComplete")).map(each => element("div", {}, `◂\u00a0${each}`));
  if (missing) done.push(element("div", {className: "soft"}, "no such step"));
  const made = [element("td", {className: `done first ${side}`}, ...done)];
  for (const run of runs) made.push(lane(side, view.rows.get(run), before.rows.get(run)));
  made.push(callLane(side, view.running, before.running));
  const memory = element("td", {className: `memory ${side}`});
  for (const [name, value] of view.rows) if (!name.startsWith("run "))
    memory.append(element(before.rows.get(name) === value ? "span" : "b", {}, `${name}: ${value}`));
  for (const name of before.rows.keys()) if (["mark", "flag", "count"].includes(name) && !view.rows.has(name))
    memory.append(element("b", {}, `${name}: ${name === "mark" ? "removed" : `consumed by ${all[nth].action.run}`}`));
  return [...made, memory];
}

function lane(side, now, was) {
  const piece = element("div", {className: "piece"});
  if (now && !now.startsWith("complete")) {
    const bar = element("i", {className: now.includes("covered") ? "covered" : ""});
    bar.style.backgroundColor = space.colours[now.split(",")[0]];
    piece.append(bar);
  }
  if (now !== was) piece.append(element("span", {}, now));
  return element("td", {className: `lane ${side}`}, piece);
}

function callLane(side, running, before) {
  const piece = element("div", {className: "piece"});
  for (const [lead, stopped] of running) {
    piece.append(element("i", {className: stopped ? "call covered" : "call"}));
    if (before.get(lead) !== stopped) piece.append(element("span", {}, stopped ? `✕ ${lead} interrupted` : lead));
  }
  return element("td", {className: `lane ${side}`}, piece);
}

function showLegend() {
  for (const [state, colour] of Object.entries(space.colours)) if (state !== "complete") {
    const mark = element("i");
    mark.style.backgroundColor = colour;
    $("legend").append(mark, state);
  }
  const covered = element("i", {className: "covered"});
  covered.style.backgroundColor = space.colours.accepted;
  $("legend").append(covered, "covered by a cancel. A dashed line is a cancel; ◂ arrives at the callers.");
}

// Going back and on.

function back() {
  const {mechanism, path} = position();
  if (path.length) goTo(mechanism, path.slice(0, -1));
}

function again() {
  const {mechanism, path} = position();
  if (ahead.length > path.length) goTo(mechanism, ahead.slice(0, path.length + 1));
}

async function begin() {
  try {
    space = await unpack();
  } catch (wrong) {
    $("verdict").append(element("p", {className: "verdict bad"}, `This browser cannot unpack the page: ${wrong}`));
    return;
  }
  $("mechanism").addEventListener("change", () => { ahead = []; goTo(chosen($("mechanism").value), []); });
  $("back").addEventListener("click", back);
  $("again").addEventListener("click", again);
  $("restart").addEventListener("click", () => goTo(position().mechanism, []));
  $("shortest").addEventListener("click", () => { const {mechanism} = position(); goTo(mechanism, mechanism.way); });
  addEventListener("hashchange", show);
  document.addEventListener("keydown", event => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.tagName === "SELECT") return;
    if (event.key === "ArrowLeft") back();
    else if (event.key === "ArrowRight") again();
    else return;
    event.preventDefault();
  });
  showLegend();
  show();
  document.body.dataset.ready = "yes";
}

begin();
