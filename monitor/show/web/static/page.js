// Keeps an open page up to date, and adds what a page without a script cannot do. The server writes
// the whole page: everything here is an addition.
import { build } from "./elements.js";
import { showActs } from "./page-acts.js";
import { Grid } from "./page-grid.js";
import { showKeys } from "./page-keys.js";
import { follow } from "./page-live.js";
import { showCopies } from "./page-work.js";
import { showValues } from "./charts.js";
import { localise, shownTime, showZone } from "./zone.js";

const away = document.getElementById("away");
const grid = new Grid(document.getElementById("grid"), document.getElementById("filter"));

// A link from an older message: its incident has its own page.
const linked = decodeURIComponent(location.hash.slice(1));
if (location.pathname === "/" && linked && !document.getElementById(linked)) {
  location.replace(`/incidents/${encodeURIComponent(linked)}`);
}

function showAway(since) {
  document.body.classList.toggle("stale", since !== null);
  if (since === null) {
    away.replaceChildren();
    return;
  }
  const text = `Monitor away since ${shownTime(since / 1000, "time")}: what stands here is what it said last.`;
  away.replaceChildren(build(["p", { class: "banner bad" }, text]));
}

document.body.classList.add("scripted");
localise(document);
showKeys(grid);
showZone();
showValues();
showActs();
showCopies();
follow({ onNews: () => grid.refresh(), onAway: showAway });
