// A few keys, and a list of them.
import { build } from "./elements.js";

const KEYS = [
  ["/", "to the filter"], ["Esc", "empties the filter, closes a dialog"],
  ["Tab", "to the next part; the whole grid is one"],
  ["← →", "in the grid: the link before, the next one"], ["↑ ↓", "in the grid: the row above, below"],
  ["Home End", "in the grid: the first, the last"], ["f", "the fleet"], ["i", "all incidents"],
  ["a", "who needs attention"], ["?", "this list"],
];

export function showKeys(grid) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "keys-title");
  const rows = KEYS.map(([key, what]) => ["div", {}, ["dt", {}, key], ["dd", {}, what]]);
  const close = build(["button", { type: "button" }, "Close"]);
  close.addEventListener("click", () => dialog.close());
  dialog.append(build(["h2", { id: "keys-title" }, "Keys"]), build(["dl", { class: "keys" }, ...rows]), close);
  document.body.append(dialog);

  const hint = build(["button", { type: "button", class: "hint" }, "Keys: ?"]);
  hint.addEventListener("click", () => dialog.showModal());
  document.querySelector("header nav")?.append(hint);

  const does = {
    "/": () => grid.focusFilter(),
    "?": () => { dialog.showModal(); return true; },
    f: () => { location.href = "/"; return true; },
    i: () => { location.href = "/incidents"; return true; },
    a: () => {
      const part = document.getElementById("attention");
      (part?.querySelector("a") ?? part)?.focus();
      part?.scrollIntoView({ block: "nearest" });
      return Boolean(part);
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
    if (Object.hasOwn(does, event.key) && does[event.key]()) event.preventDefault();
  });
}
