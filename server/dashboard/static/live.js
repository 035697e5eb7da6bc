// Keeps a page up to date. A job's page follows the job's events; with each the live regions are
// fetched anew, at most every REFRESH_MS, and the new page is passed to the charts as `felix:fresh`
// on document, so that figures and charts are of one moment. Pages with `data-poll` just fetch again at times. Both wait longer where the service
// is slow: a page takes a hundredth of its time at most. Nothing runs in a hidden tab.

const REFRESH_MS = 2000;
const MOST_MS = 15000;

const body = document.body;
let leave = null;
let seq = Number(body.dataset.seq || 0);
let timer = 0;
let last = 0;
let took = 0;
let busy = false;
let failures = 0;

export function start() {
  if (body.dataset.job) {
    if ("follow" in body.dataset) follow();
    document.addEventListener("visibilitychange", () => (document.hidden ? unfollow() : again()));
  } else if (body.dataset.poll) {
    show("live", "Live");
    poll();
    document.addEventListener("visibilitychange", () => document.hidden || refresh());
  }
  window.addEventListener("offline", () => lost());
  window.addEventListener("online", () => again());
}

function pause(least) {
  return Math.min(MOST_MS, Math.max(least, 100 * took));
}

function poll() {
  setTimeout(async () => {
    if (!document.hidden) await refresh();
    poll();
  }, pause(Number(body.dataset.poll)));
}

// Follow the job from where the page is; also after an action that may have woken it.
export function follow() {
  if (leave) return;
  leave = followEvents(body.dataset.job, () => seq, {
    opened: connected,
    event(event) {
      if (event.seq <= seq) return;
      seq = event.seq;
      document.dispatchEvent(new CustomEvent("felix:event", { detail: event }));
      soon();
    },
    ended() {
      unfollow();
      show("ended", "Ended");
      soon(0);
      document.dispatchEvent(new CustomEvent("felix:end"));
    },
    lost,
    refused() {
      unfollow();
      check();
    },
  });
}

// Fetch the page and put its live regions in place of the old ones.
export async function refresh() {
  if (busy) return;
  busy = true;
  const began = Date.now();
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (response.redirected && new URL(response.url).pathname === "/dashboard/login") return loggedOut();
    if (!response.ok) throw new Error(String(response.status));
    put(new DOMParser().parseFromString(await response.text(), "text/html"));
    connected();
  } catch {
    lost();
  } finally {
    busy = false;
    last = Date.now();
    took = last - began;
  }
}

export function soon(delay = Math.max(0, last + pause(REFRESH_MS) - Date.now())) {
  if (timer || document.hidden) return;
  timer = setTimeout(() => {
    timer = 0;
    refresh();
  }, delay);
}

function put(page) {
  for (const region of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(region.id);
    if (fresh) morph(region, fresh);
  }
  document.title = page.title;
  document.dispatchEvent(new CustomEvent("felix:fresh", { detail: page }));
  if (!body.dataset.job) return;
  if (page.body.hasAttribute("data-follow")) body.dataset.follow = "";
  else delete body.dataset.follow;
}

function unfollow() {
  leave?.();
  leave = null;
}

function again() {
  if (body.dataset.job && "follow" in body.dataset) follow();
  soon(0);
}

// The stream was refused: is the login over, or the server away?
async function check() {
  try {
    const response = await fetch("/v1/me");
    if (response.status === 401) return loggedOut();
  } catch {
    // away: try again below
  }
  lost();
  setTimeout(() => document.hidden || again(), 5000);
}

function connected() {
  failures = 0;
  document.getElementById("lost").hidden = true;
  const followed = body.dataset.job ? "follow" in body.dataset : body.dataset.poll;
  if (followed) show("live", "Live");
  else show("ended", "Ended");
}

function lost() {
  failures += 1;
  show("lost", "Reconnecting…");
  if (failures < 2 && navigator.onLine) return;
  notify("The service does not answer. What you see may be old; it is updated as soon as the connection is back.");
}

function loggedOut() {
  unfollow();
  show("lost", "Logged out");
  const next = encodeURIComponent(location.pathname + location.search);
  notify("Your login has ended. ", "Log in again", `/dashboard/login?next=${next}`);
}

function show(kind, text) {
  const place = document.getElementById("link");
  place.hidden = false;
  place.className = `link link-${kind}`;
  if (place.textContent !== text) place.textContent = text;
}

function notify(text, label, address) {
  const place = document.getElementById("lost");
  place.replaceChildren(text);
  if (address) {
    const link = document.createElement("a");
    link.href = address;
    link.textContent = label;
    place.append(link);
  }
  place.hidden = false;
}

// Follows a job's events: through the worker that all pages of this browser share, so that together
// they hold one connection; a browser without shared workers opens a stream for the page alone.
//
// `on` has: opened(), event(event), ended(), lost() while it reconnects, refused() when it gave up.

const TYPES = [
  "state", "changed", "started", "opened", "baseline", "round", "trial", "final", "trained",
  "checkpoint", "artifact", "warning",
];

// The worker drops pages that it has not heard of for longer.
const ALIVE_MS = 20000;

// Returns a function that ends it; `seq()` is the newest event that the page knows.
function followEvents(job, seq, on) {
  return "SharedWorker" in window ? shared(job, seq, on) : alone(job, seq, on);
}

function shared(job, seq, on) {
  const address = new URL("stream-worker.js", import.meta.url);
  const worker = new SharedWorker(address, { name: "felix-events" });
  const tell = (message) => worker.port.postMessage(message);
  const follows = () => tell({ job, seq: seq() });
  let end = () => {
    clearInterval(timer);
    tell({ job: null });
    worker.port.close();
  };
  const timer = setInterval(follows, ALIVE_MS);
  worker.port.onmessage = ({ data }) => on[data.kind](data.event);
  worker.onerror = () => {
    end();
    end = alone(job, seq, on);
  };
  follows();
  return () => end();
}

function alone(job, seq, on) {
  const source = new EventSource(`/v1/jobs/${job}/events/stream?after_seq=${seq()}`);
  source.onopen = () => on.opened();
  for (const type of TYPES) {
    source.addEventListener(type, (message) => on.event(JSON.parse(message.data)));
  }
  source.addEventListener("end", () => {
    source.close();
    on.ended();
  });
  source.onerror = () => (source.readyState === EventSource.CLOSED ? on.refused() : on.lost());
  return () => source.close();
}

// Make an element's content equal to another's with the fewest changes, so that focus, selection,
// scroll positions, ticked boxes and opened details stay. Children are matched by `data-key` or
// `id` where they have one, else by place.

function morph(from, to) {
  attributes(from, to);
  const keyed = new Map();
  for (const child of from.children) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  let place = from.firstChild;
  for (const target of [...to.childNodes]) {
    const key = keyOf(target);
    let match = key ? keyed.get(key) : place;
    if (!key && match && keyOf(match)) match = null;
    if (match && match.nodeName === target.nodeName) {
      if (match !== place) from.insertBefore(match, place);
      else place = place.nextSibling;
      if (target.nodeType === Node.ELEMENT_NODE) morph(match, target);
      else if (match.nodeValue !== target.nodeValue) match.nodeValue = target.nodeValue;
    } else {
      from.insertBefore(document.importNode(target, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// What people change by themselves stays as they left it.
const USER_STATE = new Set(["open", "checked", "value", "selected"]);

function attributes(from, to) {
  const isControl = /^(INPUT|TEXTAREA|SELECT|OPTION|DETAILS)$/.test(from.nodeName);
  for (const { name, value } of [...to.attributes]) {
    if (isControl && USER_STATE.has(name)) continue;
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (isControl && USER_STATE.has(name)) continue;
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  }
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
}
