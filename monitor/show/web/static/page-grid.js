// The grid of groups or hosts: filters, and is one stop of the tab key, within which arrow keys move.

const STATES = ["dead", "unreachable", "stalled", "corrupt", "traced", "slow", "evicting", "starting", "late", "waiting", "healthy", "ended", "finished", "unknown"];

export class Grid {
  constructor(list, place) {
    this.list = list;
    this.current = null;
    if (!list) return;
    this.#offer(place);
    this.refresh();
    list.addEventListener("focusin", (event) => this.#stop(event.target.closest("a")));
    list.addEventListener("keydown", (event) => this.#key(event));
  }

  // The list has changed.
  refresh() {
    if (!this.list) return;
    this.#rove();
    this.filter();
  }

  // -- filter ---------------------------------------------------------------------------------

  #offer(place) {
    if (!place) return;
    this.text = document.createElement("input");
    Object.assign(this.text, { type: "search", id: "filter-text", placeholder: "name", maxLength: 120 });
    this.state = document.createElement("select");
    this.state.id = "filter-state";
    for (const state of ["any state", "not healthy", ...STATES]) this.state.append(new Option(state, state));
    this.shown = document.createElement("span");
    const labelled = (text, field) => {
      const label = document.createElement("label");
      label.textContent = text;
      label.append(field);
      return label;
    };
    place.replaceChildren(labelled("Show ", this.text), labelled("with ", this.state), this.shown);
    const words = new URLSearchParams(location.search); // as a colleague has sent it
    this.text.value = (words.get("name") ?? "").slice(0, 120);
    if ([...this.state.options].some((each) => each.value === words.get("state"))) this.state.value = words.get("state");
    for (const field of [this.text, this.state]) field.addEventListener("input", () => this.#chosen());
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.text.value = "";
      this.#chosen();
    });
  }

  // Filters, and keeps the filter in the address.
  #chosen() {
    this.filter();
    const words = new URLSearchParams(location.search);
    for (const [word, value, all] of [["name", this.text.value.trim(), ""], ["state", this.state.value, "any state"]]) {
      words.delete(word);
      if (value !== all) words.set(word, value);
    }
    const search = words.toString();
    history.replaceState(history.state, "", location.pathname + (search && `?${search}`) + location.hash);
  }

  filter() {
    for (const item of this.list.children) this.#sieve(item);
    this.#count();
    if (!this.current?.isConnected || this.current.closest("li").hidden) {
      this.#stop(this.list.querySelector("li:not([hidden]) a"));
    }
  }

  #sieve(item) {
    if (!this.text) return;
    const text = this.text.value.trim().toLowerCase();
    const state = this.state.value;
    const has = item.dataset.has.split(" ");
    let fits = state === "any state" || has.includes(state);
    if (state === "not healthy") fits = has.some((one) => one !== "healthy");
    if (text) fits &&= item.textContent.toLowerCase().includes(text);
    if (item.hidden === fits) item.hidden = !fits;
  }

  #count() {
    if (!this.text) return;
    const all = this.list.children.length;
    const shown = all - this.list.querySelectorAll(":scope > [hidden]").length;
    const said = shown === all ? "" : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} shown`;
    if (this.shown.textContent !== said) this.shown.textContent = said;
  }

  // -- keys -----------------------------------------------------------------------------------

  #rove() {
    if (!this.list.classList.contains("cells")) return;
    for (const link of this.list.querySelectorAll("a:not([tabindex])")) link.tabIndex = -1;
  }

  #stop(link) {
    if (!link || link === this.current || !this.list.classList.contains("cells")) return;
    if (this.current) this.current.tabIndex = -1;
    this.current = link;
    link.tabIndex = 0;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const link = event.target.closest("a");
    const to = link && this.#target(event.key, link);
    if (!to) return;
    event.preventDefault();
    to.focus();
  }

  #target(key, link) {
    const links = () => [...this.list.querySelectorAll("li:not([hidden]) a")];
    const item = link.closest("li");
    switch (key) {
      case "ArrowRight": { const all = links(); return all[all.indexOf(link) + 1]; }
      case "ArrowLeft": { const all = links(); return all[all.indexOf(link) - 1]; }
      case "ArrowDown": return this.#beyond(item, "nextElementSibling");
      case "ArrowUp": return this.#beyond(item, "previousElementSibling");
      case "Home": return links()[0];
      case "End": return links().at(-1);
      default: return null;
    }
  }

  // The nearest cell in the next row.
  #beyond(item, step) {
    let row = null;
    let best = null;
    for (let at = item[step]; at; at = at[step]) {
      if (at.hidden || at.offsetTop === item.offsetTop) continue;
      row ??= at.offsetTop;
      if (at.offsetTop !== row) break;
      if (!best || Math.abs(at.offsetLeft - item.offsetLeft) < Math.abs(best.offsetLeft - item.offsetLeft)) best = at;
    }
    return best?.querySelector("a");
  }

  // For the `/` key.
  focusFilter() {
    this.text?.focus();
    return Boolean(this.text);
  }
}
