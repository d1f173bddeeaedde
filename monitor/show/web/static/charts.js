// What the pointer or a finger is on, below its chart.
import { shownTime } from "./zone.js";

export function showValues() {
  const show = (event) => {
    const hit = event.target.closest?.(".hit");
    const line = hit?.closest("figure")?.querySelector(".readout");
    if (!line) return;
    const { says, since } = hit.dataset;
    line.textContent = since ? `${shownTime(Number(since), "full")}: ${says}` : says;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("pointerdown", show);
}
