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
export function follow(job, seq, on) {
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
