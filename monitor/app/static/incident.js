// Keeps the page of an incident fresh: asks for the page again and puts in what has changed.
// Where a person reads stays as it is: scrolled boxes, opened details, the keyboard's place.

const EVERY_MS = { open: 2000, followed: 5000 };
const GIVE_UP_MS = 10000;
const TOKEN = "lightkeeper.token"; // where the dialogs of other pages keep it, for who ticks that
const SLOWEST_MS = 30000;
const EVIDENCE = new Set(["evidence", "stacks"]);
const main = document.querySelector("main");
const shown = new Map(); // section -> as the monitor wrote it, without what a person opened
const withheld = document.querySelector("[data-withheld]") !== null; // without the token
let failures = 0;

for (const section of main.querySelectorAll(":scope > section")) shown.set(section.id, section.cloneNode(true));

// What a person opened or closed, scrolled and stands on, by names that the next page has too.
function held(section) {
  const keys = [...section.querySelectorAll("details")].map((one, index) => [one.dataset.key || index, one.open]);
  const scrolled = [...section.querySelectorAll(".wide, pre")].map((one) => one.scrollLeft);
  const active = section.contains(document.activeElement) ? document.activeElement : null;
  const focusable = [...section.querySelectorAll("a, summary, button, [tabindex]")];
  return { keys: new Map(keys), scrolled, focus: active ? focusable.indexOf(active) : -1 };
}

function restore(section, before) {
  [...section.querySelectorAll("details")].forEach((one, index) => {
    const open = before.keys.get(one.dataset.key || index);
    if (open !== undefined) one.open = open;
  });
  [...section.querySelectorAll(".wide, pre")].forEach((one, index) => { one.scrollLeft = before.scrolled[index] || 0; });
  if (before.focus >= 0) section.querySelectorAll("a, summary, button, [tabindex]")[before.focus]?.focus({ preventScroll: true });
}

function selecting() {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && main.contains(selection.anchorNode);
}

// Puts the sections of the new page into this one; `kept`: it left out what is shown already.
function put(next) {
  const kept = next.querySelector("#story").dataset.kept === "yes";
  const wanted = [...next.querySelectorAll(":scope > section")];
  const names = new Set(wanted.map((one) => one.id));
  for (const old of [...main.querySelectorAll(":scope > section")]) {
    if (!names.has(old.id) && !(kept && EVIDENCE.has(old.id))) {
      old.remove();
      shown.delete(old.id);
    }
  }
  let last = null;
  for (const section of wanted) {
    const old = document.getElementById(section.id);
    let place = old;
    if (old === null) {
      place = document.importNode(section, true);
      if (last === null) main.prepend(place); else last.after(place);
    } else if (!section.isEqualNode(shown.get(section.id))) {
      const before = held(old);
      place = document.importNode(section, true);
      old.replaceWith(place);
      restore(place, before);
    }
    shown.set(section.id, section);
    last = place;
    if (kept && section.id === "who") { // what is kept stands behind it
      while (last.nextElementSibling && EVIDENCE.has(last.nextElementSibling.id)) last = last.nextElementSibling;
    }
  }
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
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  put(next.querySelector("main"));
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
  if (every === undefined) return; // it is over, and nothing of it changes any more
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
// A kept token shows what is withheld without one.
if (withheld && sessionStorage.getItem(TOKEN)) refresh().catch((error) => say(error.message));
setTimeout(turn, 1000);
