// Asks the monitor for this page again, and puts into it what has changed. Asks nothing while the tab
// is hidden, nor once the page says that it no longer changes.
import { parse, patch } from "./sections.js";

const AWAY_LEAST_MS = 5000;
const GIVE_UP_MS = 8000;
const UNCHANGED = 304;
const GONE = 404; // its page says so
const TOKEN = "lightkeeper.token"; // where a dialog keeps it if the user ticks that

// What a person most likely reads, which stays in place: the focused element, or the middle.
function read(main) {
  const middle = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  return [document.activeElement, middle].find((one) => one !== main && main.contains(one));
}

function put(next) {
  const main = document.getElementById("main");
  const held = read(main);
  const top = held?.getBoundingClientRect().top;
  const acting = document.activeElement?.closest("#acts"); // its button may be needed no more
  for (const id of ["chips", "main"]) {
    const wanted = next.getElementById(id);
    if (wanted) patch(document.getElementById(id), wanted);
  }
  if (held?.isConnected) scrollBy(0, held.getBoundingClientRect().top - top);
  if (acting && document.activeElement === document.body) acting.querySelector("button")?.focus();
  document.title = next.title;
}

export function follow({ onNews, onAway }) {
  const withheld = document.querySelector("[data-withheld]") !== null; // without the token
  const headers = { Accept: "text/html" };
  let everyMs = 1000 * Number(document.body.dataset.every);
  let heard = Date.now();
  let isAway = false;
  let isAsking = false;
  let timer = 0;

  function hear() {
    heard = Date.now();
    if (isAway) onAway(null);
    isAway = false;
  }

  async function take(answer) {
    const next = parse(await answer.text());
    headers["If-None-Match"] = answer.headers.get("ETag");
    put(next);
    everyMs = 1000 * Number(next.body.dataset.every);
    onNews();
  }

  async function ask() {
    clearTimeout(timer);
    if (isAsking || document.hidden) return;
    isAsking = true;
    const token = withheld ? sessionStorage.getItem(TOKEN) : null;
    if (token) headers.Authorization = `Bearer ${token}`;
    try {
      const answer = await fetch(location.pathname + location.search, {
        headers, signal: AbortSignal.timeout(GIVE_UP_MS), cache: "no-store",
      });
      const isPage = answer.headers.get("Content-Type")?.startsWith("text/html");
      if (isPage && (answer.ok || answer.status === GONE)) await take(answer);
      if (isPage || answer.status === UNCHANGED) hear();
    } catch {
      // away: the watch says so
    }
    isAsking = false;
    if (everyMs) timer = setTimeout(ask, everyMs);
  }

  setInterval(() => {
    if (document.hidden || isAway || !everyMs || Date.now() - heard <= Math.max(AWAY_LEAST_MS, 4 * everyMs)) return;
    isAway = true;
    onAway(heard);
  }, 500);
  document.addEventListener("lightkeeper:done", ask); // a dialog has changed something
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !everyMs) return;
    heard = Date.now(); // nothing was asked
    ask();
  });
  if (withheld && sessionStorage.getItem(TOKEN)) ask(); // with a kept token, what is withheld without one
  else if (everyMs) timer = setTimeout(ask, everyMs);
}
