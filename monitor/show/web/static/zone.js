// One time zone on every page: UTC or the reader's, as the button in the header says. Kept by the browser.

const KEY = "lightkeeper.zone";
const FORMS = {
  full: { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" },
  time: { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" },
  clock: { hour: "2-digit", minute: "2-digit" },
  day: { month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit" },
};

function isUtc() {
  try {
    return localStorage.getItem(KEY) === "UTC";
  } catch {
    return false; // a browser that keeps nothing
  }
}

// Unix time in seconds: `2026-11-23 04:44:21 GMT+9`, `04:44:21 UTC`, `04:44`.
export function shownTime(at, form) {
  const moment = new Date(1000 * at);
  if (Number.isNaN(moment.valueOf())) return null;
  const options = { ...FORMS[form] ?? FORMS.full, hourCycle: "h23", ...(isUtc() ? { timeZone: "UTC" } : {}) };
  const parts = {};
  for (const { type, value } of new Intl.DateTimeFormat("en", options).formatToParts(moment)) parts[type] = value;
  const date = [parts.year, parts.month, parts.day].filter(Boolean).join("-");
  const time = [parts.hour, parts.minute, parts.second].filter(Boolean).join(":");
  return [date, time, parts.timeZoneName].filter(Boolean).join(" ");
}

// UTC, as in the logs, when the pointer is on it.
export function localise(root) {
  for (const one of root.querySelectorAll("time[data-at]")) {
    const text = shownTime(Number(one.dataset.at), one.dataset.as);
    if (text !== null && one.textContent !== text) one.textContent = text;
  }
}

export function showZone() {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "hint zone", title: "show times in UTC or in this browser's time zone" });
  const say = () => { button.textContent = isUtc() ? "Times: UTC" : "Times: local"; };
  button.addEventListener("click", () => {
    try {
      localStorage.setItem(KEY, isUtc() ? "local" : "UTC");
    } catch {
      return;
    }
    say();
    localise(document);
  });
  say();
  document.querySelector("header nav")?.append(button);
}
