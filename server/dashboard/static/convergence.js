// Convergence of one job: best so far as steps, measured trials as points, live.

import { Chart, colour, json, latencyAxis, loading, unitOf } from "./charts.js";

const job = document.body.dataset.job;
const choose = document.getElementById("curve-task");
const xOf = document.getElementById("curve-x");
const isLog = document.getElementById("curve-log");
const withBase = document.getElementById("curve-base");
const TITLES = { trial: "Trials", elapsed_s: "Seconds of tuning", measured_s: "Seconds measured" };

let curve = { points: [], unscheduled_us: null };
let points = { trial: [], elapsed_s: [], measured_s: [], latency_us: [], task: [] };
let nLoads = 0;

// The task whose trials are shown; a job of one task is that task.
function task() {
  return choose ? choose.value : "0";
}

function figure() {
  if (!curve.points.length && !points.trial.length) {
    const follow = "follow" in document.body.dataset;
    return { empty: follow ? "Nothing measured yet: the curve begins with the first trial." : "Nothing was measured." };
  }
  const x = xOf.value;
  const base = withBase.checked && curve.unscheduled_us ? [curve.unscheduled_us] : [];
  const unit = unitOf([...points.latency_us, ...curve.points.map((p) => p.best_us)]);
  const text = `<br>%{y:.4~g} ${unit.name}<extra></extra>`;
  const traces = [];
  if (task() !== "") {
    traces.push({
      name: "trial", mode: "markers", type: "scatter",
      x: points[x], y: points.latency_us.map((v) => v / unit.us), text: points.trial,
      marker: { size: 5, opacity: 0.6, color: colour("--c-points") },
      hovertemplate: `trial %{text}${text}`,
    });
  }
  traces.push({
    name: "best so far", mode: "lines+markers", type: "scatter",
    x: curve.points.map((p) => p[x]), y: curve.points.map((p) => p.best_us / unit.us),
    text: curve.points.map((p) => p.trial),
    line: { shape: "hv", width: 2.5, color: colour("--c1") }, marker: { size: 5 },
    hovertemplate: `best after trial %{text}${text}`,
  });
  const layout = {
    xaxis: { title: { text: TITLES[x] }, rangemode: "tozero" },
    yaxis: latencyAxis("Latency", unit, isLog.checked),
  };
  for (const y of base.map((v) => v / unit.us)) {
    layout.shapes = [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colour("--c2"), dash: "dot", width: 2 },
      label: { text: "unscheduled", textposition: "end", font: { color: colour("--c2") } },
    }];
    const all = [...traces.flatMap((trace) => trace.y), y];
    const [low, high] = [Math.min(...all), Math.max(...all)];
    layout.yaxis.range = isLog.checked ? [Math.log10(low) - 0.1, Math.log10(high) + 0.1] : [0, high * 1.05];
  }
  return { traces, layout };
}

const chart = new Chart("convergence", figure);

function load() {
  const mine = ++nLoads;
  return loading(chart, async () => {
    const query = task() === "" ? "" : `?task=${task()}`;
    const [one, other] = await Promise.all([
      json(`/v1/jobs/${job}/curve${query}`),
      task() === "" ? points : json(`/dashboard/data/jobs/${job}/points${query}`),
    ]);
    if (mine !== nLoads) return; // another task was chosen meanwhile
    curve = one;
    points = other;
  });
}

// A trial as its event has it: a point, and perhaps a step of the curve.
function add(event) {
  const { trial, elapsed_s, latency_us, best_us, is_best, curve_us } = event.payload;
  const ofTask = String(event.payload.task) === task();
  const measured_s = lastMeasured();
  if (ofTask && latency_us !== null && !points.trial.includes(trial)) {
    points.trial.push(trial);
    points.elapsed_s.push(elapsed_s);
    points.measured_s.push(measured_s);
    points.latency_us.push(latency_us);
  }
  const best = task() === "" ? curve_us : ofTask && is_best ? best_us : null;
  const now = curve.points.at(-1)?.best_us ?? null;
  const value = best ?? now;
  if (value === null) return chart.draw();
  if (best === null) curve.points = curve.points.filter((p) => !p.isEnd);
  curve.points = curve.points.filter((p) => p.trial < trial);
  curve.points.push({ trial, elapsed_s, measured_s, best_us: value, isEnd: best === null });
  chart.draw();
}

// Events do not say how long kernels ran: the last known figure stands until the data is loaded.
function lastMeasured() {
  return points.measured_s?.at(-1) ?? curve.points.at(-1)?.measured_s ?? 0;
}

document.addEventListener("felix:event", ({ detail }) => {
  if (detail.type === "trial") add(detail);
  else if (["final", "baseline", "checkpoint"].includes(detail.type)) load();
});
document.addEventListener("felix:end", load);
choose?.addEventListener("change", load);
for (const control of [xOf, isLog, withBase]) control.addEventListener("change", () => chart.draw());
load();
