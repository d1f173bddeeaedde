// Follows the monitor: a stream of changes; polling while no stream is free; nothing while
// the tab is hidden, so that a forgotten tab holds none of the few streams.

const STREAM_AGAIN_MS = 30_000;
const AWAY_LEAST_MS = 5000;
const POLL_LEAST_MS = 2000;
const GIVE_UP_MS = 8000;

export function follow({ place, tag, tickMs, onNews, onAway, onMode }) {
  const awayMs = Math.max(AWAY_LEAST_MS, 4 * tickMs);
  const pollMs = Math.max(POLL_LEAST_MS, tickMs);
  let heard = Date.now();
  let isAway = false;
  let source = null;
  let timer = 0;
  let streamAgain = 0;

  function take(news) {
    heard = Date.now();
    if (isAway) onAway(null);
    isAway = false;
    if (news.tag === tag) return;
    tag = news.tag;
    onNews(news);
  }

  function query() {
    return `page=${encodeURIComponent(place)}&since=${encodeURIComponent(tag)}`;
  }

  function stream() {
    stop();
    const made = new EventSource(`/v1/events?${query()}`);
    source = made;
    made.addEventListener("open", () => onMode("stream"));
    made.addEventListener("page", (event) => take(JSON.parse(event.data)));
    made.addEventListener("error", () => {
      // an answer that is no stream: refused, or a proxy speaks for the monitor
      if (made.readyState === EventSource.CLOSED && source === made) poll();
    });
  }

  function poll() {
    stop();
    onMode("poll");
    streamAgain = Date.now() + STREAM_AGAIN_MS;
    ask();
  }

  async function ask() {
    try {
      const answer = await fetch(`/v1/fleet?${query()}`, { signal: AbortSignal.timeout(GIVE_UP_MS), cache: "no-store" });
      if (answer.ok) {
        const before = isAway;
        take(await answer.json());
        if (before) streamAgain = 0; // it is back, most likely with streams
      }
    } catch {
      // away: the watch says so
    }
    if (source !== null || document.hidden) return;
    timer = setTimeout(Date.now() > streamAgain ? stream : ask, pollMs);
  }

  function stop() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  setInterval(() => {
    if (document.hidden || isAway || Date.now() - heard <= awayMs) return;
    isAway = true;
    onAway(heard);
  }, 500);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else {
      heard = Date.now(); // nothing was received
      stream();
    }
  });
  stream();
}
