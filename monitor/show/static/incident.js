// Keeps an incident's page up to date: requests it again and inserts what changed.
// Keeps the reader's place: scrolled boxes, opened details, the focus.

import { localise, parse, patch } from "./sections.js";

const EVERY_MS = { open: 2000, followed: 5000 };
const GIVE_UP_MS = 10000;
const TOKEN = "lightkeeper.token"; // where dialogs of other pages keep it if the user ticks that
const SLOWEST_MS = 30000;
const EVIDENCE = new Set(["evidence", "stacks"]);
const main = document.querySelector("main");
const withheld = document.querySelector("[data-withheld]") !== null; // without the token
let failures = 0;

function selecting() {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && main.contains(selection.anchorNode);
}

// Puts the new page's sections into this one; `kept`: it left out what is already shown.
function put(next) {
  const kept = next.querySelector("#story").dataset.kept === "yes";
  const wanted = [...next.querySelectorAll(":scope > section")];
  const names = new Set(wanted.map((one) => one.id));
  for (const old of [...main.querySelectorAll(":scope > section")]) {
    if (!names.has(old.id) && !(kept && EVIDENCE.has(old.id))) old.remove();
  }
  let last = null;
  for (const section of wanted) {
    let place = document.getElementById(section.id);
    if (place !== null) patch(place, section);
    else {
      place = document.adoptNode(section);
      if (last === null) main.prepend(place); else last.after(place);
    }
    last = place;
    if (kept && place.id === "who") { // what is kept follows it
      while (last.nextElementSibling && EVIDENCE.has(last.nextElementSibling.id)) last = last.nextElementSibling;
    }
  }
}

// What a person most likely reads, which stays in place: the focused element, or the middle.
function read() {
  const active = document.activeElement;
  const middle = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  return [active, middle].find((one) => one !== main && main.contains(one));
}

async function refresh() {
  const story = document.getElementById("story");
  const url = new URL(location.pathname, location.origin);
  if (story.dataset.stamp && document.getElementById("stacks")) url.searchParams.set("have", story.dataset.stamp);
  const headers = { Accept: "text/html" };
  const token = withheld ? sessionStorage.getItem(TOKEN) : null;
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(url, { signal: AbortSignal.timeout(GIVE_UP_MS), headers, cache: "no-store" });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const next = parse(await answer.text());
  const held = read();
  const top = held?.getBoundingClientRect().top;
  put(next.querySelector("main"));
  if (held?.isConnected) scrollBy(0, held.getBoundingClientRect().top - top);
  document.title = next.title;
}

function say(text) {
  let note = document.getElementById("away");
  if (!text) return void note?.remove();
  if (note === null) {
    note = document.createElement("p");
    note.id = "away";
    note.className = "banner wait";
    note.setAttribute("role", "status");
    main.prepend(note);
  }
  note.textContent = text;
}

async function turn() {
  const every = EVERY_MS[document.getElementById("story").dataset.live];
  if (every === undefined) return; // it is over and no longer changes
  if (!document.hidden && !selecting()) {
    try {
      await refresh();
      failures = 0;
      say("");
    } catch (error) {
      failures += 1;
      if (failures > 1) say(`The monitor does not answer (${error.message}): this page may be old.`);
    }
  }
  setTimeout(turn, Math.min(SLOWEST_MS, every * 2 ** Math.min(failures, 4)));
}

document.body.classList.add("scripted");
localise(document);
// With a kept token, show what is withheld without one.
if (withheld && sessionStorage.getItem(TOKEN)) refresh().catch((error) => say(error.message));
setTimeout(turn, 1000);
