// Actions from a page: a dialog says what will happen, asks for the reason and the token, and
// shows the answer. The token goes into one header of one request; it is kept (in this tab's
// session, nowhere else) only if the user ticks that.
import { build } from "./elements.js";

const KEPT = "lightkeeper.token";
const NAME = "lightkeeper.author";

function field(text, options, hint) {
  const input = document.createElement("input");
  Object.assign(input, { autocomplete: "off", ...options });
  const label = build(["label", { class: input.type === "checkbox" ? "tick" : "field" }]);
  const said = build(["span", {}, text]);
  label.append(...(input.type === "checkbox" ? [input, said] : [said, input]));
  if (hint) label.append(build(["span", { class: "meta" }, hint]));
  return { label, input };
}

class Deed {
  constructor(button) {
    this.button = button;
    this.data = { ...button.dataset };
    this.dialog = document.createElement("dialog");
    this.dialog.className = "deed";
    this.dialog.setAttribute("aria-labelledby", "deed-title");
    this.form = document.createElement("form");
    this.reason = field("Why", { required: "reason" in this.data && this.data.reason !== "optional", maxLength: 500, name: "reason" }, "kept with the decision");
    this.author = field("Your name", { required: this.data.author === "required", maxLength: 60, name: "author" }, "shown beside it");
    this.hours = field("For how many hours", { type: "number", min: "0.1", max: "8784", step: "any", name: "hours", required: this.data.hours === "required" }, this.data.hours === "required" ? "" : "empty: until somebody ends it");
    this.fields = JSON.parse(this.data.fields || "[]").map(([name, label, value, required]) => // from the button itself
      field(label, { name, value, required, maxLength: 1000 }));
    this.typed = field(`Type ${this.data.typed} to confirm`, { name: "typed", required: true, spellcheck: false });
    this.token = field("The monitor's token", { type: "password", required: true, name: "token" });
    this.keep = field("Keep the token until this tab is closed", { type: "checkbox", name: "keep" });
    this.go = build(["button", { type: "submit", class: button.classList.contains("grave") ? "grave" : "" }, this.data.key]);
    this.leave = build(["button", { type: "button" }, "Cancel"]);
    this.answer = build(["p", { class: "answer", role: "alert" }]);
    this.#compose();
    this.#listen();
  }

  #compose() {
    const { data } = this;
    const kept = sessionStorage.getItem(KEPT);
    if (kept) [this.token.input.value, this.keep.input.checked] = [kept, true];
    this.author.input.value = sessionStorage.getItem(NAME) ?? "";
    const asked = [
      ...this.fields, "reason" in data ? this.reason : null, "hours" in data ? this.hours : null,
      data.author === "no" ? null : this.author,
      data.typed ? this.typed : null, this.token, this.keep,
    ];
    const buttons = build(["p", { class: "buttons" }]);
    buttons.append(this.leave, this.go);
    this.form.append(
      build(["h2", { id: "deed-title" }, data.key]), build(["p", {}, data.what]),
      ...asked.filter(Boolean).map((one) => one.label), this.answer, buttons);
    this.dialog.append(this.form);
  }

  #listen() {
    const confirm = () => { this.go.disabled = Boolean(this.data.typed) && this.typed.input.value.trim() !== this.data.typed; };
    this.typed.input.addEventListener("input", confirm);
    confirm();
    this.leave.addEventListener("click", () => this.dialog.close());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.dialog.addEventListener("close", () => {
      this.dialog.remove();
      const stays = this.button.isConnected ? this.button : document.querySelector("#acts button");
      stays?.focus(); // what is done may need no button any more
    });
  }

  open() {
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.form.querySelector("input")?.focus();
  }

  #body() {
    const body = JSON.parse(this.data.more || "{}"); // from the button itself
    if ("reason" in this.data && this.reason.input.value.trim()) body.reason = this.reason.input.value;
    if ("hours" in this.data && this.hours.input.value) body.hours = Number(this.hours.input.value);
    for (const { input } of this.fields) if (input.value.trim()) body[input.name] = input.value;
    if (this.author.input.value.trim()) body.author = this.author.input.value;
    return body;
  }

  async #send() {
    const token = this.token.input.value.trim();
    const kept = { [KEPT]: token, [NAME]: this.author.input.value };
    for (const [name, value] of Object.entries(kept)) {
      if (this.keep.input.checked) sessionStorage.setItem(name, value);
      else sessionStorage.removeItem(name);
    }
    this.go.disabled = true;
    this.#say("", "Asking the monitor …");
    try {
      const answer = await fetch(this.data.path, {
        method: this.data.method, cache: "no-store",
        body: this.data.method === "GET" ? undefined : JSON.stringify(this.#body()),
        headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      });
      const said = this.data.save && answer.ok ? await this.#save(answer) : await answer.json();
      if (answer.ok) this.#done(said);
      else this.#failed(`Refused (${answer.status}): ${said.error}`);
    } catch (error) {
      this.#failed(`No answer: ${error.message}`);
    }
  }

  // As a download: a link would carry no token.
  async #save(answer) {
    const url = URL.createObjectURL(await answer.blob());
    build(["a", { href: url, download: this.data.save }]).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    return {};
  }

  #failed(text) {
    this.#say("bad", text);
    this.go.disabled = false;
  }

  #done(said) {
    this.#say("good", ["Done.", said.reset, said.note].filter(Boolean).join(" "));
    if (said.incident_id && !location.pathname.endsWith(encodeURIComponent(said.incident_id))) {
      this.answer.append(" ", build(["a", { href: `/incidents/${encodeURIComponent(said.incident_id)}` }, said.incident_id]));
    }
    for (const one of this.form.querySelectorAll("label")) one.remove();
    this.go.remove();
    this.leave.textContent = "Close";
    this.leave.focus();
    document.dispatchEvent(new Event("lightkeeper:done"));
  }

  #say(tone, text) {
    this.answer.className = `answer ${tone}`;
    this.answer.textContent = text;
  }
}

export function showActs() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-path]");
    if (button && !button.disabled) new Deed(button).open();
  });
}
