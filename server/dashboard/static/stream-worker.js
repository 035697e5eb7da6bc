// One event stream for all pages of this browser. A page tells its job and the newest event that it
// knows, again and again while it is open. The stream is opened anew when there is a job that it does
// not have, from the newest events that came; pages leave out what they know already.

const MOST_JOBS = 64;
const SILENT_MS = 120000;
const TOGETHER_MS = 20;
const AGAIN_MS = 2000;

// By port: the page's job, and when it was heard of.
const pages = new Map();
// Of the open stream, by job: the newest event that came.
const positions = new Map();
let source = null;
let timer = 0;

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => (data.job === null ? leave(port) : join(port, data));
};

function join(port, { job, seq }) {
  const number = Number(job);
  const isNew = pages.get(port)?.job !== number;
  pages.set(port, { job: number, at: Date.now() });
  for (const [other, { at }] of pages) if (Date.now() - at > SILENT_MS) leave(other);
  if (!positions.has(number) || (isNew && seq < positions.get(number))) {
    positions.set(number, seq);
    open(TOGETHER_MS);
  } else if (isNew && source?.readyState === EventSource.OPEN) {
    port.postMessage({ kind: "opened" });
  }
}

function leave(port) {
  pages.delete(port);
  if (!pages.size) close();
}

function close() {
  clearTimeout(timer);
  source?.close();
  source = null;
  timer = 0;
  positions.clear();
}

// After a while, so that pages that open together cost one stream.
function open(delay) {
  timer ||= setTimeout(() => {
    timer = 0;
    connect();
  }, delay);
}

function connect() {
  source?.close();
  const followed = new Set([...pages.values()].map(({ job }) => job));
  for (const job of positions.keys()) if (!followed.has(job)) positions.delete(job);
  if (!positions.size) return;
  const query = [...positions].slice(-MOST_JOBS).map(([job, seq]) => `job=${job}:${seq}`);
  source = new EventSource(`/v1/events/stream?${query.join("&")}`);
  source.onopen = () => tell("opened");
  source.onerror = () => (source.readyState === EventSource.CLOSED ? refused() : lost());
  source.onmessage = ({ data }) => {
    const { job_id: job, event } = JSON.parse(data);
    positions.set(job, Math.max(event.seq, positions.get(job) ?? 0));
    tell("event", job, event);
  };
  source.addEventListener("end", ({ data }) => {
    const { job_id: job } = JSON.parse(data);
    tell("ended", job);
    positions.delete(job);
    for (const [port, page] of pages) if (page.job === job) leave(port);
  });
}

// The browser would ask again for what came before.
function lost() {
  source.close();
  tell("lost");
  open(AGAIN_MS);
}

// Each page finds out why, and comes back.
function refused() {
  tell("refused");
  pages.clear();
  close();
}

function tell(kind, job = null, event = undefined) {
  for (const [port, page] of pages) {
    if (job === null || page.job === job) port.postMessage({ kind, event });
  }
}
