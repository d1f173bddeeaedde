// Asks the monitor for changes; asks nothing while the tab is hidden.

const AWAY_LEAST_MS = 5000;
const POLL_LEAST_MS = 2000;
const GIVE_UP_MS = 8000;
const UNCHANGED = 304;

export function follow({ place, tag, tickMs, onNews, onAway }) {
  const awayMs = Math.max(AWAY_LEAST_MS, 4 * tickMs);
  const pollMs = Math.max(POLL_LEAST_MS, tickMs);
  let heard = Date.now();
  let isAway = false;
  let isAsking = false;
  let timer = 0;

  function hear() {
    heard = Date.now();
    if (isAway) onAway(null);
    isAway = false;
  }

  function take(news) {
    hear();
    if (news.tag === tag) return;
    tag = news.tag;
    onNews(news);
  }

  async function ask() {
    clearTimeout(timer);
    if (isAsking || document.hidden) return;
    isAsking = true;
    const query = `page=${encodeURIComponent(place)}&since=${encodeURIComponent(tag)}`;
    try {
      const answer = await fetch(`/v1/fleet?${query}`, {
        headers: { "If-None-Match": `"${tag}"` },
        signal: AbortSignal.timeout(GIVE_UP_MS),
        cache: "no-store",
      });
      if (answer.status === UNCHANGED) hear();
      else if (answer.ok) take(await answer.json());
    } catch {
      // away: the watch says so
    }
    isAsking = false;
    timer = setTimeout(ask, pollMs);
  }

  setInterval(() => {
    if (document.hidden || isAway || Date.now() - heard <= awayMs) return;
    isAway = true;
    onAway(heard);
  }, 500);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    heard = Date.now(); // nothing was asked
    ask();
  });
  ask();
}
