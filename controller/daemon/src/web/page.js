// The page's script: follows the server's events, and draws.
const $ = (id) => document.getElementById(id);
const SAMPLES = 600, BANDS = 10, WHOLE = 10000, PPM = 1e6, SAMPLE_NS = 1e9, AGAIN_MS = 3000;

// The samples of each tenant on each GPU, the latest last: key → { tenant, gpu, share: [] }.
const series = new Map();
let status = null, arrived = 0, chosen = null, curves = null, sortBy = "share", descending = true;

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
const key = (tenant, gpu) => gpu + "\n" + tenant;
const percent = (ppm) => ppm === null || ppm === undefined ? "–" : (ppm / 1e4).toFixed(1) + " %";
function time(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns < 1e6) return (ns / 1e3).toFixed(0) + " µs";
  if (ns < 1e9) return (ns / 1e6).toFixed(ns < 1e7 ? 2 : 0) + " ms";
  const [length, unit] = [[1e9, " s"], [6e10, " min"], [36e11, " h"]].find(([length]) => ns < 99.95 * length) || [864e11, " d"];
  return (ns / length).toFixed(1) + unit;
}
function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < 4; unit++) count /= 1024;
  // As `deepres ps` shows it.
  return (Number.isInteger(count) ? count : count.toFixed(1)) + " " + units[unit];
}

// ---- figures ----

// The accounts at the last event, and the time of the event; null if the history is the last event.
let accounts = new Map(), taken = null;
// Adds samples of one value. On a slow line, the server leaves out events.
function extend(list, value, samples) {
  for (; samples > 0; samples--) list.push(value);
  list.splice(0, list.length - SAMPLES);
}
function take(next) {
  const elapsed = taken === null ? 0 : next.now_ns - taken;
  // The history that the page just got has the sample of this status already. A status may come a
  // quarter of a second early.
  const samples = taken === null ? 0 : Math.min(SAMPLES, Math.max(1, Math.floor(elapsed / SAMPLE_NS + 0.25)));
  const told = new Map();
  for (const tenant of next.tenants)
    for (const account of tenant.gpus) {
      const name = key(tenant.name, account.gpu), before = accounts.get(name);
      const since = (figure) => (before && elapsed > 0 ? Math.max(0, figure(account) - figure(before)) / elapsed : 0);
      account.waiting = since((one) => one.wait_ns);
      account.sample = samples > 1 ? since((one) => one.gpu_ns) * WHOLE : account.recent_share_ppm / 100;
      told.set(name, account);
      if (!series.has(name)) series.set(name, { tenant: tenant.name, gpu: account.gpu, share: [] });
    }
  for (const [name, one] of series) {
    const account = told.get(name);
    extend(one.share, account ? account.sample : 0, samples);
    if (!account && !one.share.some((share) => share)) series.delete(name);
  }
  for (const one of curves || []) {
    const account = told.get(key(one.tenant, one.gpu));
    const now = account ? [account.sample, account.waiting * 1e6, account.memory_bytes / 1048576] : [0, 0, 0];
    [one.share, one.wait_us, one.memory_mib].forEach((list, place) => extend(list, now[place], samples));
  }
  accounts = told;
  taken = next.now_ns;
  status = next;
  arrived = performance.now();
  show();
}

// ---- chart ----

const chart = $("chart"), picture = document.createElement("canvas");
let bands = [], step = 0;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Returns the bands of the chart, the largest first: name, samples (parts of all shown GPUs) and
// colour.
function stack(count) {
  const gpu = $("gpu").value;
  const gpus = gpu === "" ? Math.max(1, status.gpus.length) : 1;
  const sums = new Map();
  for (const one of series.values()) {
    if (gpu !== "" && one.gpu !== Number(gpu)) continue;
    let band = sums.get(one.tenant);
    if (!band) sums.set(one.tenant, (band = { name: one.tenant, all: 0, samples: new Float32Array(count) }));
    const shift = count - one.share.length;
    for (let at = Math.max(0, -shift); at < one.share.length; at++) {
      band.samples[at + shift] += one.share[at] / WHOLE / gpus;
      band.all += one.share[at];
    }
  }
  const sorted = [...sums.values()].filter((band) => band.all > 0).sort((a, b) => b.all - a.all);
  const shown = sorted.slice(0, BANDS), rest = sorted.slice(BANDS);
  if (rest.length) {
    const others = { name: rest.length + " others", samples: new Float32Array(count), rest: true };
    for (const band of rest) band.samples.forEach((share, at) => (others.samples[at] += share));
    shown.push(others);
  }
  return shown;
}
const used = new Map();
// Keeps the colour of a tenant while it is in the chart.
function colour(band) {
  if (band.rest) return "rest";
  if (!used.has(band.name)) {
    const taken = new Set(used.values());
    let free = 0;
    while (taken.has(free) && free < BANDS - 1) free++;
    used.set(band.name, free);
  }
  return "c" + used.get(band.name);
}
function paint() {
  const count = Number($("span").value) + 1;
  const ratio = devicePixelRatio || 1, width = chart.clientWidth, height = chart.clientHeight;
  step = (width / (count - 2)) * ratio;
  if (chart.width !== Math.round(width * ratio) || chart.height !== Math.round(height * ratio)) {
    chart.width = Math.round(width * ratio);
    chart.height = Math.round(height * ratio);
  }
  picture.width = Math.ceil(step * (count - 1)) + 1;
  picture.height = chart.height;
  bands = stack(count);
  const names = new Set(bands.map((band) => band.name));
  for (const name of used.keys()) if (!names.has(name)) used.delete(name);
  const pen = picture.getContext("2d");
  pen.fillStyle = css("--idle");
  pen.fillRect(0, 0, picture.width, picture.height);
  const base = new Float32Array(count), edge = css("--back");
  for (const band of bands) {
    band.colour = colour(band);
    pen.beginPath();
    for (let at = 0; at < count; at++) {
      const y = picture.height * (1 - Math.min(1, base[at] + band.samples[at]));
      if (at) pen.lineTo(at * step, y);
      else pen.moveTo(0, y);
    }
    for (let at = count - 1; at >= 0; at--) pen.lineTo(at * step, picture.height * (1 - Math.min(1, base[at])));
    pen.closePath();
    pen.fillStyle = css("--" + band.colour);
    pen.fill();
    // The line between two bands shows them apart without their colours.
    pen.strokeStyle = edge;
    pen.lineWidth = ratio;
    pen.stroke();
    band.samples.forEach((share, at) => (base[at] += share));
  }
  bands.reverse();
  legend(count);
}
function legend(count) {
  const list = $("legend");
  const wanted = bands.map((band) => band.name + band.colour).join("\n");
  if (list.dataset.wanted !== wanted) {
    list.dataset.wanted = wanted;
    list.replaceChildren(
      ...bands.map((band) => {
        const swatch = el("span", { class: "swatch " + band.colour, "aria-hidden": "true" });
        const text = el("span");
        const label = band.rest ? el("span", {}, swatch, text) : el("button", { type: "button", onclick: () => choose(band.name) }, swatch, text);
        return el("li", {}, label);
      }),
    );
  }
  bands.forEach((band, at) => put(list.children[at].firstChild.lastChild, band.name + " " + percent(band.samples[count - 1] * PPM)));
  const idle = 1 - bands.reduce((sum, band) => sum + band.samples[count - 1], 0);
  const parts = [...bands].reverse().slice(0, 5).map((band) => band.name + " " + percent(band.samples[count - 1] * PPM));
  chart.setAttribute("aria-label", "Shares of GPU time now: " + [...parts, "idle " + percent(Math.max(0, idle) * PPM)].join(", "));
}
// Moves the picture to the left all the time, so that each sample comes in smoothly.
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
function move() {
  const since = isStill.matches ? 1 : Math.min(1, (performance.now() - arrived) / 1000);
  const pen = chart.getContext("2d");
  pen.drawImage(picture, -since * step, 0);
}
function frame() {
  if (status && !isStill.matches) move();
  requestAnimationFrame(frame);
}

// ---- tables ----

const rows = new Map();
const COLUMNS = ["name", "gpu", "owed", "share", "used", "wait", "memory", "p99", "gate"];
// The account of a tenant that has had no process on a GPU.
const NO_ACCOUNT = { gpu: null, entitled_ppm: null, recent_share_ppm: null, gpu_ns: null, waiting: null, memory_bytes: null, requests: null, gate: null };
const figure = {
  name: (row) => row.tenant.name,
  gpu: (row) => row.account.gpu,
  owed: (row) => row.account.entitled_ppm || 0,
  share: (row) => row.account.recent_share_ppm,
  used: (row) => row.account.gpu_ns,
  wait: (row) => row.account.waiting,
  memory: (row) => row.account.memory_bytes,
  p99: (row) => (row.account.requests ? (row.account.requests.p99_ns || 0) / row.account.requests.slo_ns : -1),
  gate: (row) => row.account.gate || "",
};
const shown = {
  name: (row) => row.tenant.name,
  gpu: (row) => (row.account.gpu === null ? "–" : String(row.account.gpu)),
  owed: (row) => (row.account.is_lent && row.account.entitled_ppm !== null ? "(" + percent(row.account.entitled_ppm) + ")" : percent(row.account.entitled_ppm)),
  share: (row) => percent(row.account.recent_share_ppm),
  used: (row) => time(row.account.gpu_ns),
  wait: (row) => percent(row.account.waiting === null ? null : row.account.waiting * PPM),
  memory: (row) => bytes(row.account.memory_bytes) + (row.tenant.memory_limit_bytes ? " of " + bytes(row.tenant.memory_limit_bytes) : ""),
  p99: (row) => (row.account.requests ? time(row.account.requests.p99_ns) + " / " + time(row.account.requests.slo_ns) : ""),
  gate: (row) => row.account.gate || "–",
};
function tenants() {
  const filter = $("filter").value.toLowerCase(), gpu = $("gpu").value;
  const all = [];
  for (const tenant of status.tenants)
    for (const account of tenant.gpus.length ? tenant.gpus : [NO_ACCOUNT])
      if (tenant.name.toLowerCase().includes(filter) && (gpu === "" || account.gpu === Number(gpu))) all.push({ tenant, account });
  const value = figure[sortBy], way = descending ? -1 : 1;
  all.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one !== other) return one < other ? -way : way;
    return a.tenant === b.tenant ? a.account.gpu - b.account.gpu : a.tenant.name < b.tenant.name ? -1 : 1;
  });
  const names = new Set(all.map((row) => row.tenant.name));
  const waiting = status.waiting ? "; jobs that wait: " + status.waiting : "";
  put($("count"), names.size + " of " + status.tenants.length + " tenants" + waiting);
  const body = $("tenants").tBodies[0], seen = new Set(), focused = document.activeElement;
  all.forEach((one, place) => {
    const name = key(one.tenant.name, one.account.gpu);
    seen.add(name);
    let row = rows.get(name);
    if (!row) {
      row = el("tr");
      const button = el("button", { type: "button", onclick: () => choose(one.tenant.name) });
      row.append(el("th", { scope: "row" }, button), ...COLUMNS.slice(1).map(() => el("td")));
      rows.set(name, row);
    }
    COLUMNS.forEach((column, at) => put(at ? row.cells[at] : row.cells[0].firstChild, shown[column](one)));
    const requests = one.account.requests;
    row.cells[7].classList.toggle("bad", Boolean(requests && requests.p99_ns > requests.slo_ns));
    row.classList.toggle("chosen", one.tenant.name === chosen);
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
  });
  for (const [name, row] of rows)
    if (!seen.has(name)) {
      row.remove();
      rows.delete(name);
    }
  // A row that moves loses the focus.
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
  for (const head of $("tenants").tHead.rows[0].cells)
    if (head.dataset.by === sortBy) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
}
function gpus() {
  const select = $("gpu"), body = $("gpus").tBodies[0];
  // The next daemon may have fewer GPUs.
  while (select.options.length > status.gpus.length + 1) select.lastChild.remove();
  while (body.rows.length > status.gpus.length) body.lastChild.remove();
  for (const gpu of status.gpus.slice(select.options.length - 1)) select.append(el("option", { value: String(gpu.index) }, String(gpu.index)));
  status.gpus.forEach((gpu, place) => {
    let row = body.rows[place];
    if (!row) {
      row = el("tr", {}, el("th", { scope: "row" }), ...Array.from({ length: 5 }, () => el("td")));
      body.append(row);
    }
    const phase = (gpu.holder ? gpu.phase + " (" + gpu.holder + ")" : gpu.phase) + (gpu.fault ? "; fault: " + gpu.fault : "");
    const cells = [gpu.index + " " + gpu.name, percent(gpu.recent_share_ppm), bytes(gpu.held_bytes) + " of " + bytes(gpu.memory_bytes), phase, String(gpu.handoffs), time(gpu.handoff_p99_ns)];
    cells.forEach((text, at) => put(row.cells[at], text));
    row.cells[3].classList.toggle("bad", Boolean(gpu.fault));
  });
}
function unmanaged() {
  $("others").hidden = !status.unmanaged_count;
  const more = status.unmanaged_count - status.unmanaged.length;
  const lines = status.unmanaged.map((one) => one.pid + " " + one.command + " (user " + one.uid + ", " + one.state + ")");
  if (more) lines.push(more + " more");
  const list = $("unmanaged");
  if (list.dataset.wanted !== lines.join("\n")) {
    list.dataset.wanted = lines.join("\n");
    list.replaceChildren(...lines.map((line) => el("li", {}, line)));
  }
}
function show() {
  if (!status || document.hidden) return;
  gpus();
  tenants();
  unmanaged();
  paint();
  move();
  if (chosen !== null) detail();
}

// ---- one tenant ----

function choose(name) {
  chosen = name;
  // Entries for another tenant must not change this one.
  $("change").reset();
  $("details").hidden = false;
  put($("details-head"), name);
  $("curves").replaceChildren();
  $("explain").replaceChildren();
  put($("outcome"), "");
  tenants();
  detail();
  $("details-head").focus();
  explain();
  recall();
}
// Gets the last minutes of the chosen tenant.
async function recall() {
  const name = chosen;
  curves = null;
  let series = [];
  try {
    const answer = await fetch("/history?tenant=" + encodeURIComponent(name));
    series = (await answer.json()).series;
  } catch {
    // The page gets them with the next connection.
  }
  if (chosen !== name) return;
  curves = series;
  detail();
}
function detail() {
  const tenant = status.tenants.find((one) => one.name === chosen);
  if (!tenant) return put($("about"), "The tenant is gone.");
  const about = ["class " + tenant.class, "user " + tenant.uid, "processes: " + tenant.sessions];
  if (tenant.asked_share_ppm !== null) about.push("share " + percent(tenant.asked_share_ppm));
  for (const account of tenant.gpus) {
    const kinds = Object.entries(account.memory_by_kind).map(([kind, count]) => kind + " " + bytes(count));
    if (kinds.length) about.push("memory on GPU " + account.gpu + ": " + kinds.join(", "));
    if (account.refusals) about.push("refused allocations on GPU " + account.gpu + ": " + account.refusals);
    const requests = account.requests;
    if (requests && requests.ended) {
      about.push("requests on GPU " + account.gpu + ": " + requests.ended + ", " + percent(requests.attained_ppm) + " of the latest within " + time(requests.slo_ns) + ", median " + time(requests.p50_ns) + ", 99 % within " + time(requests.p99_ns) + ", " + requests.goodput_per_second + "/s in time");
      if (requests.late) {
        const rivals = Object.entries(requests.late.waited_for_ns).sort((a, b) => b[1] - a[1]).map(([name, ns]) => name + " " + time(ns));
        about.push("late requests take " + time(requests.late.latency_ns) + ": wait for other tenants " + time(requests.late.waited_ns) + (rivals.length ? " (" + rivals.join(", ") + ")" : "") + ", own GPU time " + time(requests.late.worked_ns) + ", the rest " + time(requests.late.rest_ns));
      }
    }
  }
  for (const process of tenant.processes) about.push(process.pid + " " + process.client);
  put($("about"), about.join("; "));
  put($("pause"), tenant.paused || tenant.suspended ? "Resume" : "Pause");
  if (curves) draw();
}
// Draws the small charts: share, waits and memory of the last ten minutes.
function draw() {
  const place = $("curves");
  const parts = [
    ["share of the GPU", "share", WHOLE, (most) => percent(most * 100)],
    ["threads waiting at the gate", "wait_us", 1e6, (most) => (most / 1e6).toFixed(1)],
    ["memory", "memory_mib", 1, (most) => bytes(most * 1048576)],
  ];
  const count = curves.length * parts.length;
  if (place.children.length !== count)
    place.replaceChildren(...Array.from({ length: count }, () => el("figure", {}, el("canvas", { role: "img" }), el("figcaption"))));
  curves.forEach((one, number) =>
    parts.forEach(([what, name, least, text], at) => {
      const [canvas, caption] = place.children[number * parts.length + at].children;
      const list = one[name], most = Math.max(least, ...list);
      canvas.width = canvas.clientWidth;
      canvas.height = canvas.clientHeight;
      const pen = canvas.getContext("2d"), width = canvas.width / (SAMPLES - 1);
      pen.fillStyle = css("--c0");
      pen.beginPath();
      pen.moveTo(canvas.width, canvas.height);
      for (let back = 0; back < list.length; back++)
        pen.lineTo(canvas.width - back * width, canvas.height * (1 - list[list.length - 1 - back] / most));
      pen.lineTo(canvas.width - (list.length - 1) * width, canvas.height);
      pen.fill();
      const label = what + " on GPU " + one.gpu + ", ten minutes; top of the chart: " + text(most);
      put(caption, label);
      canvas.setAttribute("aria-label", label + "; now " + text(list[list.length - 1] || 0));
    }),
  );
}
const authorization = () => ({ Authorization: "Bearer " + $("token").value.trim() });
async function explain() {
  const name = chosen;
  const lines = [];
  const sum = (title, one) => [
    el("h4", {}, title + " " + percent(one.ppm)),
    el("dl", {}, ...one.terms.flatMap((term) => [el("dt", {}, (term.ppm < 0 ? "−" : "+") + percent(Math.abs(term.ppm))), el("dd", {}, term.what)])),
  ];
  try {
    const answer = await fetch("/explain?tenant=" + encodeURIComponent(name), { headers: authorization() });
    const text = await answer.text();
    const reply = answer.ok ? JSON.parse(text) : { reply: "error", message: text };
    if (reply.reply === "error") lines.push(el("p", {}, reply.message));
    else if (!reply.gpus.length) lines.push(el("p", {}, "The tenant has no process on a GPU now."));
    else
      for (const share of reply.gpus) {
        lines.push(...sum("GPU " + share.gpu + ": owed", share.owed), ...sum("at the present demand", share.present));
        const lag = share.lag_ns >= 0 ? "is owed " + time(share.lag_ns) : "had " + time(-share.lag_ns) + " too much";
        lines.push(el("p", {}, "received " + percent(share.received_ppm) + " of the last second; gate " + share.gate + "; by the fluid limit, the tenant " + lag));
      }
  } catch {
    lines.push(el("p", {}, "the daemon does not answer"));
  }
  if (chosen === name) $("explain").replaceChildren(...lines);
}
async function change(order) {
  put($("outcome"), "asking the daemon");
  let said;
  try {
    const headers = { "Content-Type": "application/json", ...authorization() };
    const answer = await fetch("/change", { method: "POST", headers, body: JSON.stringify(order) });
    const text = await answer.text();
    const reply = answer.ok ? JSON.parse(text) : { reply: "error", message: text.trim() };
    said = reply.reply === "error" ? reply.message : { set: "done", paused: "paused", resumed: "resumed" }[reply.reply] || reply.reply;
  } catch {
    said = "the daemon does not answer";
  }
  put($("outcome"), said);
  explain();
}

// ---- controls ----

$("change").addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target.elements, wish = {};
  const share = form.share.value.trim().replace(/\s*%$/, "");
  if (share !== "") {
    const part = Number(share);
    if (!(part > 0 && part <= 100)) return put($("outcome"), "a share is a number from 0 to 100 %");
    wish.share_ppm = Math.round(part * 1e4);
  }
  if (form.class.value) wish.class = form.class.value;
  if (Object.keys(wish).length) change({ op: "set", tenant: chosen, wish });
  else put($("outcome"), "give a share or a class");
});
$("pause").addEventListener("click", () => {
  const tenant = status.tenants.find((one) => one.name === chosen);
  if (tenant) change({ op: tenant.paused || tenant.suspended ? "resume" : "pause", tenant: chosen });
});
function close() {
  if (chosen === null) return;
  const row = [...rows.values()].find((one) => one.classList.contains("chosen"));
  chosen = curves = null;
  $("details").hidden = true;
  show();
  if (row) row.cells[0].firstChild.focus();
}
$("close").addEventListener("click", close);
addEventListener("keydown", (event) => event.key === "Escape" && close());
for (const head of $("tenants").tHead.rows[0].cells)
  head.firstChild.addEventListener("click", () => {
    descending = sortBy === head.dataset.by ? !descending : !["name", "gpu", "gate"].includes(head.dataset.by);
    sortBy = head.dataset.by;
    tenants();
  });
for (const id of ["gpu", "span", "filter"]) $(id).addEventListener("input", show);
for (const [type, target] of [["resize", window], ["visibilitychange", document]]) target.addEventListener(type, show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
$("token").value = sessionStorage.getItem("token") || "";
$("token").addEventListener("input", () => sessionStorage.setItem("token", $("token").value));
$("token").addEventListener("change", () => chosen !== null && explain());

function follow() {
  const events = new EventSource("/events");
  events.addEventListener("history", (event) => {
    series.clear();
    for (const one of JSON.parse(event.data).series) series.set(key(one.tenant, one.gpu), one);
    taken = null;
    if (chosen !== null) recall();
  });
  events.addEventListener("status", (event) => {
    take(JSON.parse(event.data));
    put($("state"), "deepres " + status.version + ", live");
    $("state").classList.remove("bad");
  });
  events.addEventListener("error", () => {
    const isRefused = events.readyState === EventSource.CLOSED;
    put($("state"), (isRefused ? "the daemon refuses one more open page" : "no connection to the daemon") + "; this page tries again");
    $("state").classList.add("bad");
    // After a refusal, the browser does not try again.
    if (isRefused) setTimeout(follow, AGAIN_MS);
  });
}
follow();
frame();
