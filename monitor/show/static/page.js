// Keeps an open page up to date, and adds what a page without a script cannot do. The server writes
// the whole page: everything here is an addition.
import { build } from "./elements.js";
import { showActs } from "./page-acts.js";
import { Grid } from "./page-grid.js";
import { showKeys } from "./page-keys.js";
import { follow } from "./page-live.js";
import { localise, parse, patch } from "./sections.js";

const body = document.body;
const away = document.getElementById("away");
const grid = new Grid(document.querySelector("[data-items]"), document.getElementById("filter"));

// A link from an older message: its incident has its own page.
const linked = decodeURIComponent(location.hash.slice(1));
if (linked && linked !== "main" && !document.getElementById(linked)) {
  location.replace(`/incidents/${encodeURIComponent(linked)}`);
}

function apply(news) {
  const shown = [...document.querySelectorAll("#chips, main > [id]:not(#away)")].map((one) => one.id);
  if (news.full && Object.keys(news.parts).sort().join() !== shown.sort().join()) {
    location.reload(); // sections came or went
    return;
  }
  document.title = `${news.title} · lightkeeper`;
  for (const [id, markup] of Object.entries(news.parts)) {
    const part = document.getElementById(id);
    if (part) patch(part, parse(markup).body.firstElementChild);
  }
  grid.apply(news);
}

function showAway(since) {
  body.classList.toggle("stale", since !== null);
  if (since === null) {
    away.replaceChildren();
    return;
  }
  const text = `Monitor away since ${new Date(since).toLocaleTimeString()}: what stands here is what it said last.`;
  if (away.textContent !== text) away.replaceChildren(build(["p", { class: "banner bad" }, text]));
}

body.classList.add("scripted");
localise(document);
showKeys(grid);
showActs();
if (body.dataset.place) {
  follow({
    place: body.dataset.place, tag: body.dataset.tag, tickMs: 1000 * Number(body.dataset.tick),
    onNews: apply, onAway: showAway,
  });
}
