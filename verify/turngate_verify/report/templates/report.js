"use strict";
// Every step has an address, CASE/NUMBER after the #. What is shown follows from the address alone.

const cases = [...document.querySelectorAll(".case")];
// What is violated is opened at the step that breaks the promise, unless the address asks for something else.
const violated = cases.find(each => each.dataset.violated);
const start = violated ? `${violated.id}/${violated.dataset.opensAt}` : "";

function here() {
  const address = decodeURIComponent(location.hash.slice(1)) || start;
  const at = address.lastIndexOf("/");
  const [name, number] = at < 0 ? [address, 1] : [address.slice(0, at), Number(address.slice(at + 1))];
  const found = cases.find(each => each.id === name);
  const most = found ? Number(found.dataset.steps) : 0;
  return found && number >= 1 && number <= most ? {found, number, most} : null;
}

function show() {
  const at = here();
  if (!at) return;
  at.found.open = true;
  for (const section of at.found.querySelectorAll("section"))
    section.classList.toggle("current", Number(section.dataset.step) === at.number);
  at.found.querySelectorAll("nav a").forEach((link, nth) => {
    if (nth + 1 === at.number) link.setAttribute("aria-current", "step");
    else link.removeAttribute("aria-current");
  });
  at.found.querySelector(".back").disabled = at.number === 1;
  at.found.querySelector(".on").disabled = at.number === at.most;
  veil(at);
}

// In the picture, mark the row of this step and put a veil over the rows after it.
function veil({found, number}) {
  const rows = [...found.querySelectorAll(".tg-row")];
  for (const row of rows) row.classList.toggle("current", Number(row.dataset.step) === number);
  for (const panel of new Set(rows.map(row => row.parentNode))) {
    panel.querySelector(".veil")?.remove();
    const box = panel.getBBox();
    const later = panel.querySelector(`.tg-row[data-step="${number + 1}"]`);
    const top = later ? Number(later.querySelector(".tg-ground").getAttribute("y")) : 0;
    const height = later ? box.y + box.height - top + 2 : 0;
    const cover = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    cover.classList.add("veil");
    for (const [name, value] of Object.entries({x: box.x - 2, y: top, width: box.width + 4, height}))
      cover.setAttribute(name, value);
    panel.append(cover);
  }
}

function go(by) {
  const at = here() || (by > 0 && cases.length ? {found: cases[0], number: 0, most: Number(cases[0].dataset.steps)} : null);
  if (!at) return;
  const number = Math.min(Math.max(at.number + by, 1), at.most);
  if (number !== at.number) location.hash = `${at.found.id}/${number}`;
}

document.addEventListener("keydown", event => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
  if (!by || (Math.abs(by) > 1 && !here())) return;
  event.preventDefault();
  go(by);
});
for (const each of cases) {
  each.querySelector(".back").addEventListener("click", () => go(-1));
  each.querySelector(".on").addEventListener("click", () => go(1));
  each.addEventListener("toggle", () => {
    const at = here();
    if (each.open && !(at && at.found === each)) location.hash = `${each.id}/${each.dataset.opensAt}`;
  });
}
addEventListener("hashchange", show);
show();
