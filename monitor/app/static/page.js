"use strict";
// The page polls two JSON endpoints every second. Every text that came from a rank or the
// Lighthouse goes through textContent: nothing of it is ever markup.

const EVERY_MS = 1000;
const GIVE_UP_MS = 4000;
const TONES = {
  healthy: "good", resolved: "good", waiting: "wait", pending: "wait", evicting: "wait",
  starting: "start", stalled: "bad", dead: "bad", firing: "bad", unreachable: "away",
  critical: "bad", warning: "wait", info: "start", unknown: "away",
  worked: "good", failed: "bad", skipped: "start",
};
const opened = new Map(); // incident id -> whether a person opened or closed it
let last = null; // {snapshot, incidents}: what is shown while the monitor is away
let lastAt = 0;
let scrolled = false; // to the incident that the address names

function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  if (options.class) made.className = options.class;
  if (options.text !== undefined) made.textContent = options.text;
  if (options.href) {
    made.href = options.href;
    made.target = "_blank";
    made.rel = "noopener";
    made.dataset.key = options.href;
  }
  if (options.title) made.title = options.title;
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Replaces what an element shows; whoever stood in it with the keyboard stays where they were.
function show(id, ...given) {
  const children = given.filter((child) => child !== null);
  const place = document.getElementById(id);
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...children);
  if (held) place.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}
function chip(word) { return el("span", { class: `chip ${TONES[word] || "idle"}`, text: word }); }
function number(value) { return value === null || value === undefined ? "–" : String(value); }

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(0)} h`;
}

// A figure as people read it: 0.3333333333333333 is 0.3333.
function figure(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Math.abs(value) < 1000 ? Number(value.toPrecision(4)) : Math.round(value));
}

function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString();
}

function date(unix) {
  return unix === null ? "released by hand" : new Date(unix * 1000).toLocaleString();
}

// -- groups and ranks -------------------------------------------------------------------------

// A link carries no token: where ranks' pages need it, the page says how to ask instead.
const guarded = document.body.classList.contains("guarded");

function rankPage(base, page) {
  const text = page.replace("_", " ");
  if (!guarded) return el("a", { href: `${base}/${page}`, text });
  return el("span", { text, title: `needs the token: curl -H "Authorization: Bearer TOKEN" ${location.origin}${base}/${page}` });
}

function rankRow(rank) {
  const doing = rank.phase === null ? "" : `${rank.phase} for ${span(rank.phase_age_s)}`;
  const pace = rank.step_s === null ? "" : `${rank.step_s.toFixed(2)} s/step, busy ${rank.busy_s.toFixed(2)} s`;
  const base = `/v1/ranks/${encodeURIComponent(rank.rank)}`;
  const trouble = rank.unreachable && `${rank.unreachable.reason}: ${rank.unreachable.detail}`;
  return el("div", { class: "rank" },
    el("span", { class: "name", text: rank.rank, title: `pid ${rank.pid} on ${rank.host}` }),
    chip(rank.health),
    el("span", { class: "doing", text: doing }),
    trouble ? el("span", { class: "trouble", text: trouble }) : null,
    el("span", { class: "links" },
      ...["state", "flight_recorder", "stacks"].map((page) => rankPage(base, page)),
      pace ? el("span", { text: pace, title: "wall seconds a step, and those in which it waits for nobody" }) : null,
      rank.loss === null ? null : el("span", { text: `loss ${rank.loss.toPrecision(4)}` })));
}

function groupCard(group, ranks, quarantined) {
  const word = group.eviction || group.health;
  const quorum = group.in_quorum === null ? "?" : group.in_quorum ? "yes" : "no";
  const beat = group.heartbeat_age_s === null ? "" : ` · heartbeat ${span(group.heartbeat_age_s)} ago`;
  const host = group.host === null ? "host unknown" : group.host;
  return el("article", { class: `card ${TONES[word] || ""}` },
    el("h3", {}, el("span", { text: group.group }), chip(word)),
    el("div", { class: "meta", text: host + (quarantined ? " (quarantined)" : "") + beat, title: group.replica_id || "" }),
    el("div", { class: "numbers" },
      el("div", {}, el("b", { text: number(group.step) }), el("span", { text: "step" })),
      el("div", {}, el("b", { text: number(group.commits) }), el("span", { text: "commits" })),
      el("div", {}, el("b", { text: quorum }), el("span", { text: "in quorum" }))),
    ...ranks.map(rankRow));
}

function showGroups(snapshot) {
  const hosts = new Set(snapshot.quarantine.map((entry) => entry.host));
  const held = new Set((snapshot.quarantine_groups || []).map((entry) => entry.group));
  const cards = snapshot.groups.map((group) => groupCard(
    group, snapshot.ranks.filter((rank) => rank.group === group.group), hosts.has(group.host) || held.has(group.group)));
  show("groups", ...(cards.length ? cards : [el("div", { class: "none",
    text: "No rank has registered yet. Start ranks with LIGHTKEEPER_MONITOR set to this monitor's address." })]));
}

// -- incidents --------------------------------------------------------------------------------

function decided(row) {
  if (row.action === "evict") return "decided: evict";
  return row.action === "would_evict" ? "would evict" : `held: ${row.guard}`;
}

function decidedWhy(row) {
  let why = row.reason;
  if (row.would) {
    why += ` (rungs: ${row.would.rungs.join(", ").replaceAll("_", " ")}; quarantine: ${row.would.quarantine.join(", ") || "no host"})`;
  }
  return row.release ? `${why}; released by: ${row.release}` : why;
}

function story(incident) {
  const lines = incident.story.map((line) => ({ at: line.at_s, to: line.to, why: line.reason }));
  for (const row of incident.decisions) {
    const attempt = row.attempt > 1 ? ` (attempt ${row.attempt}: a handover interrupted it)` : "";
    lines.push({ at: row.at_s, to: decided(row), why: decidedWhy(row) + attempt });
    if (row.state === "abandoned") lines.push({ at: row.ended_s, to: "abandoned", why: row.outcome });
  }
  const eviction = incident.eviction;
  if (eviction) {
    if (eviction.gone_s) lines.push({ at: eviction.gone_s, to: "gone", why: "every accused process is gone" });
    if (eviction.left_quorum_s && !incident.milestones.left_quorum_s) {
      lines.push({ at: eviction.left_quorum_s, to: "left quorum", why: "a quorum without it" });
    }
    if (eviction.failed) lines.push({ at: incident.last_seen_s, to: "eviction failed", why: eviction.failed });
  }
  return lines.sort((a, b) => a.at - b.at);
}

function stages(at) {
  const spans = [
    ["detected", at.first_seen_s, at.firing_s], ["decided", at.firing_s, at.evict_asked_s],
    ["left the quorum", at.evict_asked_s, at.left_quorum_s],
    ["others commit again", at.evict_asked_s, at.survivor_commit_s],
    ["back in", at.evict_asked_s, at.rejoined_s], ["all together again", at.firing_s, at.resumed_s],
  ];
  return spans.filter(([, from, to]) => from && to).map(([name, from, to]) =>
    el("span", {}, `${name} after `, el("b", { text: span(to - from) })));
}

const RUNGS = {
  evidence: "evidence saved", quarantine: "quarantine", gate: "gate refuses it", lighthouse_kill: "Lighthouse kill",
  worker_evict: "WorkerServers", scheduler: "scheduler", page: "page a person",
};
const NEVER_HIDDEN = ["gate", "lighthouse_kill", "worker_evict", "scheduler", "page"];

// Every rung of an eviction in the order of the ladder; those not climbed are told too.
function rungTable(eviction, first) {
  const climbed = new Map(eviction.rungs.map((rung) => [rung.rung, rung]));
  const rows = Object.keys(RUNGS).filter((name) => climbed.has(name) || NEVER_HIDDEN.includes(name)).map((name) => {
    const rung = climbed.get(name);
    if (!rung) return [RUNGS[name], chip("not climbed"), "", "", "", ""];
    const over = rung.finished_s !== null;
    const result = rung.result || (over ? "ended" : "under way");
    const detail = rung.detail.startsWith(`${result}: `) ? rung.detail.slice(result.length + 2) : rung.detail;
    return [RUNGS[name], chip(result), `+${Math.max(0, rung.started_s - first).toFixed(1)} s`,
      over ? span(Math.max(0, rung.finished_s - rung.started_s)) : "–", span(rung.deadline_s), detail];
  });
  return el("div", { class: "rungs" }, table(["rung", "result", "began", "took", "deadline", "what it says"], rows));
}

function holdTable(holds) {
  if (!holds.length) return null;
  const rows = holds.map((held) => [held.guard.replaceAll("_", " "), held.end_s === null ? "still" : span(held.seconds),
    held.reason, held.release || "", held.ended_by || "it holds"]);
  return el("div", { class: "rungs" }, table(["guard", "held for", "why", "would be released by", "what released it"], rows));
}

function bundleLine(incident) {
  if (!incident.bundle) return null;
  const size = `${Math.max(1, Math.round(incident.bundle.bytes / 1024))} KiB`;
  const text = `evidence: flight records, stacks and states of those concerned (zip, ${size})`;
  if (!guarded) return el("p", { class: "meta" }, el("a", { href: incident.bundle.url, text }));
  const title = `needs the token: curl -OJ -H "Authorization: Bearer TOKEN" ${location.origin}${incident.bundle.url}`;
  return el("p", { class: "meta", text, title });
}

// What it cost by our own account, and what people said of it.
function bounds(amount) {
  if (amount.low === null && amount.high === null) return "cannot tell";
  if (amount.low === null) return `at most ${amount.high.toFixed(0)}`;
  if (amount.high === null) return `at least ${amount.low.toFixed(0)}`;
  const [low, high] = [amount.low.toFixed(0), amount.high.toFixed(0)];
  return low === high ? low : `${low} to ${high}`;
}

function accountLine(incident) {
  const account = incident.account;
  if (!account || !incident.milestones.firing_s) return null;
  const review = incident.review;
  return el("div", { class: "stages" },
    el("span", { text: `decided by ${account.decided_by}`, title: account.why }),
    el("span", { title: account.lost.words }, "lost ", el("b", { text: bounds(account.lost) }), ` ${account.unit}`),
    el("span", { title: account.saved.words }, "saved ", el("b", { text: bounds(account.saved) })),
    account.back_on.length ? el("span", { text: `back on ${account.back_on.join(", ")}` }) : null,
    review ? el("span", { title: review.note }, "judged ", el("b", { text: review.judgement }), ` by ${review.by}`) : null);
}

function incidentBox(incident, now) {
  const first = incident.milestones.first_seen_s;
  const box = el("details", { class: `incident ${TONES[incident.state] || ""}` },
    el("summary", {},
      chip(incident.state), chip(incident.severity), el("strong", { text: incident.kind.replaceAll("_", " ") }),
      el("span", { class: "what", text: incident.reason }),
      el("span", { class: "when", text: `${clock(first)} · ${span(now - first)} ago` })),
    el("div", { class: "inside" },
      el("div", { class: "stages" }, ...stages(incident.milestones)),
      accountLine(incident),
      el("dl", { class: "evidence" },
        el("dt", { text: "culprits" }), el("dd", { text: incident.culprits.join(", ") || "nobody is accused" }),
        el("dt", { text: "victims" }), el("dd", { text: incident.victims.join(", ") || "none" }),
        el("dt", { text: "confidence" }), el("dd", { text: incident.confidence }),
        ...Object.entries(incident.evidence).flatMap(([source, seen]) =>
          [el("dt", { text: source }), el("dd", { text: seen })])),
      ...incident.evictions.map((eviction) => rungTable(eviction, first)),
      holdTable(incident.account.holds),
      el("ol", { class: "timeline" }, ...story(incident).map((line) =>
        el("li", { class: TONES[line.to] || "" },
          el("span", { class: "at", text: `+${Math.max(0, line.at - first).toFixed(1)} s` }),
          el("span", { class: "to", text: line.to.replaceAll("_", " ") }),
          el("span", { class: "why", text: line.why })))),
      el("p", { class: "meta" }, el("a", { href: `/incidents/${encodeURIComponent(incident.id)}`, text: "on a page of its own" })),
      bundleLine(incident),
      incident.resolution ? el("p", { class: "meta", text: `Resolved: ${incident.resolution}` }) : null));
  const linked = location.hash === `#${encodeURIComponent(incident.id)}`; // from a message
  if (linked) box.classList.add("linked");
  const open = opened.has(incident.id) ? opened.get(incident.id) : linked || incident.state !== "resolved";
  box.open = open;
  const summary = box.querySelector("summary");
  summary.dataset.key = incident.id;
  summary.addEventListener("click", () => opened.set(incident.id, !box.open));
  return box;
}

// A crashed detector's kind of fault is neither there nor absent: a row of its own says so.
function unknownRow(one) {
  return el("div", { class: "unknown away" }, chip("unknown"),
    el("strong", { text: one.kind.replaceAll("_", " ") }),
    el("span", { class: "what", text: one.why }));
}

function showIncidents(incidents, unknown, now) {
  const boxes = [...unknown.map(unknownRow), ...incidents.map((incident) => incidentBox(incident, now))];
  show("incidents", ...(boxes.length ? boxes : [el("div", { class: "none", text: "None so far." })]));
  if (!scrolled) document.querySelector(".incident.linked")?.scrollIntoView();
  scrolled = true;
}

// -- quarantine, head, banners ----------------------------------------------------------------

function showQuarantine(hosts, groups) {
  const entries = [...hosts, ...groups];
  if (!entries.length) {
    show("quarantine", el("div", { class: "none", text: "No host is in quarantine." }));
    return;
  }
  show("quarantine", table(["host", "since", "until", "by", "why", "incident", "offences 28 d", "lemon"], entries.map(quarantineRow)));
}

function quarantineRow(entry) {
  const why = entry.reason + (entry.note ? ` (${entry.note})` : "");
  const until = entry.until_s === null ? "a person releases it" : date(entry.until_s);
  const incident = entry.incident_id === null ? ""
    : el("a", { href: `/incidents/${encodeURIComponent(entry.incident_id)}`, text: entry.incident_id });
  return [entry.host || `group ${entry.group}`, date(entry.since_s), until, entry.author,
    el("span", { text: why, title: entry.findings }), incident,
    entry.offences === undefined ? "" : String(entry.offences),
    el("span", { text: entry.lemon ? "yes" : "", title: entry.lemon || "" })];
}

const SEVERITIES = ["info", "warning", "critical"];

// On a phone each cell stands on a line of its own, with its head.
function labelled(cell, head) {
  cell.dataset.label = head;
  if (cell.textContent.length <= 24) cell.className = "short"; // a date and time too
  return cell;
}

function table(heads, rows) {
  const head = el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { text }))));
  const made = el("table", {}, head, el("tbody", {}, ...rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, number) => labelled(cell instanceof Node ? el("td", {}, cell) : el("td", { text: cell }), heads[number]))))));
  return el("div", { class: "wide" }, made);
}

// `evict and quarantine: dead, straggler; page: lighthouse away`: kinds by what is done at most.
function actionsLine(actions) {
  const plain = (name) => name.replaceAll("_", " ");
  const kinds = new Map();
  for (const [kind, row] of Object.entries(actions)) {
    const said = [...new Set(SEVERITIES.map((one) => plain(row[one])))].join(" / ");
    kinds.set(said, [...(kinds.get(said) || []), plain(kind)]);
  }
  return [...kinds].map(([said, some]) => `${said}: ${some.join(", ")}`).join("; ");
}

function showPolicy(policy) {
  const plain = (name) => name.replaceAll("_", " ");
  const { min_replicas: told, eviction_cost_s: cost } = policy.learned;
  const used = Object.entries(policy.learned.evictions_last_hour || {});
  const spent = used.reduce((sum, [, n]) => sum + n, 0);
  const least = told ? told.in_force : policy.guards.min_replicas.value;
  const line = `${policy.mode === "observe" ? "observes only" : "acts"}; ${actionsLine(policy.actions)}; `
    + `${spent} of ${policy.guards.budget_per_hour.value} evictions this hour, never below ${least} group${least === 1 ? "" : "s"}`;
  const loaded = policy.loaded_s ? `, loaded ${date(policy.loaded_s)}` : "";
  const facts = [`${policy.source || "no file: the defaults"}${loaded}`];
  if (told && told.lighthouse !== null) facts.push(`min replicas ${told.in_force} (configured ${told.configured}, the Lighthouse's own ${told.lighthouse})`);
  if (cost) facts.push(`an eviction costs ${figure(cost.in_force)} fleet seconds, ${cost.evictions ? `measured on ${cost.evictions}` : "as configured"}`);
  if (used.length) facts.push(`evictions in the last hour: ${used.map(([group, n]) => `${group}: ${n}`).join(", ")}`);
  const rows = Object.entries(policy.actions).map(([kind, row]) => [plain(kind), ...SEVERITIES.map((one) => plain(row[one]))]);
  const said = [...Object.entries(policy.guards), ...Object.entries(policy.thresholds)]
    .filter(([name, one]) => one.from !== "default" || name in policy.guards)
    .map(([name, one]) => [name, figure(one.value), one.from]);
  const windows = policy.maintenance.map((one) => [one.name, (one.days || ["once"]).join(", "), `${one.from} to ${one.to} UTC`]);
  const summary = el("summary", { text: line });
  summary.dataset.key = "policy";
  const box = el("details", { class: "policy" }, summary, el("div", { class: "inside" },
    ...facts.map((text) => el("p", { class: "meta", text })),
    table(["fault", ...SEVERITIES], rows), table(["option", "value", "said by"], said),
    windows.length ? table(["maintenance", "days", "when"], windows) : null));
  box.open = opened.get("policy") || false;
  summary.addEventListener("click", () => opened.set("policy", !box.open));
  show("policy", box);
}

function showHead(snapshot) {
  const sick = snapshot.groups.filter((group) => !["healthy", "starting", "waiting"].includes(group.health));
  const headline = document.getElementById("headline");
  const firing = snapshot.incidents.filter((incident) => incident.state !== "pending");
  let [tone, text] = ["good", "all groups healthy"];
  if (!snapshot.groups.length) [tone, text] = ["start", "waiting for ranks"];
  else if (snapshot.groups.some((group) => group.eviction)) [tone, text] = ["wait", "evicting"];
  else if (firing.length) [tone, text] = ["bad", `${firing.length} open incident${firing.length > 1 ? "s" : ""}`];
  else if (snapshot.unknown.length) [tone, text] = ["away", `${snapshot.unknown.length} kind${snapshot.unknown.length > 1 ? "s" : ""} of fault unknown`];
  else if (sick.length) [tone, text] = ["wait", `${sick.length} group${sick.length > 1 ? "s" : ""} not healthy`];
  headline.className = `headline ${tone}`;
  headline.textContent = text;
  document.title = tone === "good" ? "lightkeeper" : `${text} · lightkeeper`;
  const up = snapshot.lighthouse.up;
  const facts = [["quorum", up ? snapshot.lighthouse.quorum_id : "?"],
    ["members", up ? snapshot.lighthouse.members.length : "?"],
    ["groups", snapshot.groups.length], ["ranks", snapshot.ranks.length], ["tick", snapshot.tick]];
  show("facts", ...facts.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: String(value) }))));
}

function isHttp(url) { return /^https?:\/\//.test(url || ""); }

function standing(monitor) {
  if (!monitor.holder) return "This monitor stands by, and none is active yet: nothing is evicted.";
  const since = monitor.since_s ? ` since ${date(monitor.since_s)}` : "";
  return `This monitor stands by and changes nothing. ${monitor.holder} is active${since}; what it wrote is shown here.`;
}

function showBanners(snapshot, away) {
  const banners = [];
  if (away) {
    const since = lastAt ? `; this is what it last said, ${span((Date.now() - lastAt) / 1000)} ago` : "";
    banners.push(["bad", `The monitor is away: ${away}${since}`]);
  }
  if (snapshot) {
    const standby = snapshot.monitor && snapshot.monitor.role === "standby" ? snapshot.monitor : null;
    if (standby) banners.push(["info", standing(standby), standby.url]);
    if (snapshot.pause) {
      const until = snapshot.pause.until_s === null ? "until lightkeeper resume" : `until ${new Date(snapshot.pause.until_s * 1000).toLocaleString()}`;
      banners.push(["bad big", `PAUSED by ${snapshot.pause.author} ${until}: ${snapshot.pause.reason}. Nobody is evicted but by hand.`]);
    }
    if (snapshot.maintenance) banners.push(["info", `Maintenance window '${snapshot.maintenance.name}' until ${new Date(snapshot.maintenance.until_s * 1000).toLocaleString()}: nobody is evicted but by hand.`]);
    if (snapshot.observe) banners.push(["info", "Observe mode: the monitor says what it would evict, and evicts nothing."]);
    if (!snapshot.lighthouse.up) banners.push(["wait", `The Lighthouse cannot be seen: ${snapshot.lighthouse.reason}`]);
    if (guarded) {
      banners.push(["info", "This monitor is open to the network, so stacks, flight records and the like of ranks need its token: "
        + `curl -H "Authorization: Bearer TOKEN" ${location.origin}/v1/ranks/RANK/stacks (or start it with --open-reads).`]);
    }
    for (const trouble of snapshot.troubles) banners.push(["wait", trouble]);
  }
  show("banners", ...banners.map(([tone, text, url]) => el("div", { class: `banner ${tone}` },
    el("span", { text: url ? `${text} ` : text }), isHttp(url) ? el("a", { href: url, text: url }) : null)));
  document.body.classList.toggle("stale", Boolean(away));
}

// -- the loop ---------------------------------------------------------------------------------

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(GIVE_UP_MS), cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `status ${answer.status}`);
  return body;
}

async function refresh() {
  let away = null;
  try {
    const [snapshot, incidents, policy] = await Promise.all([
      get("/v1/snapshot"), get("/v1/incidents?limit=30"), get("/v1/policy")]);
    last = { snapshot, incidents: incidents.incidents };
    lastAt = Date.now();
    showHead(snapshot);
    showGroups(snapshot);
    showIncidents(last.incidents, snapshot.unknown, snapshot.now_s);
    showQuarantine(snapshot.quarantine, snapshot.quarantine_groups || []);
    showPolicy(policy);
  } catch (error) {
    const known = { TimeoutError: "it does not answer in time", TypeError: "nobody answers there" };
    away = known[error.name] || error.message;
  }
  showBanners(last && last.snapshot, away);
  setTimeout(refresh, EVERY_MS);
}

refresh();
