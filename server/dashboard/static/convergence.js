// Convergence of one job: best so far as steps, measured trials as points. Of several tasks: each
// one's share of the latency, their sum so far until all have one, and the sum of all. Of a network:
// the estimated latency of its call, and that of a whole call once it was timed.

import {
  Chart, PALETTE, colour, escaped, json, latencyAxis, loading, progressAxis, unitOf, upperFence, withData,
} from "./charts.js";

const job = document.body.dataset.job;
const choose = document.getElementById("curve-task");
const xOf = document.getElementById("curve-x");
const isLog = document.getElementById("curve-log");
const isWhole = document.getElementById("curve-whole");
const withBase = document.getElementById("curve-base");

// Lines that can be told apart, and read in a legend.
const MOST_LINES = 8;

let data = { n_trials: 0, tasks: [], total: { trial: [], best_us: [] }, network: null };
let points = { trial: [], elapsed_s: [], measured_s: [], latency_us: [], task: [] };
let nLoads = 0;

// The number of the task whose trials are shown, null for all; a job of one task is that task.
function task() {
  if (!choose) return 0;
  return choose.value === "" ? null : Number(choose.value);
}

function figure() {
  const chosen = task();
  const lines = chosen === null ? linesOfAll() : [lineOf(data.tasks.find((one) => one.number === chosen), 1)];
  const candidates = chosen === null ? [] : candidatesOf(chosen);
  const latencies_us = [...lines.flatMap((line) => line.best_us), ...candidates.map((one) => one.latency_us)];
  if (!latencies_us.length) {
    const follow = "follow" in document.body.dataset;
    return { empty: follow ? "Nothing measured yet: the curve begins with the first trial." : "Nothing was measured." };
  }
  const base_us = withBase.checked ? unscheduled(chosen) : null;
  const ceiling_us = isWhole.checked ? Math.max(...latencies_us) : upperFence(latencies_us);
  const unit = unitOf(lines.at(-1)?.best_us.length ? lines.at(-1).best_us : latencies_us);
  const curves = lines.map((line) => curveTrace(line, unit));
  const traces = [...trialTraces(candidates, ceiling_us, unit), ...curves].filter((trace) => trace.x.length);
  const last = Math.max(...traces.flatMap((trace) => trace.x));
  const call_us = chosen === null ? data.network?.call_us ?? null : null;
  const high = Math.max(ceiling_us, base_us ?? 0, call_us ?? 0);
  const low = Math.min(...latencies_us, call_us ?? Infinity);
  const layout = {
    uirevision: [chosen, xOf.value, isLog.checked, isWhole.checked, base_us, call_us].join(),
    showlegend: chosen === null,
    xaxis: progressAxis(xOf.value, last),
    yaxis: latencyAxis(
      chosen === null ? "Latency × weight" : "Latency", unit, low / unit.us, high / unit.us, isLog.checked,
    ),
  };
  layout.shapes = [
    ...(base_us === null ? [] : [across(base_us / unit.us, "unscheduled", "--c2")]),
    ...(call_us === null ? [] : [across(call_us / unit.us, "a whole call, measured", "--c3")]),
  ];
  return { traces, layout };
}

function candidatesOf(number) {
  return points.trial
    .map((trial, i) => ({ trial, x: points[xOf.value][i], latency_us: points.latency_us[i], task: points.task[i] }))
    .filter((one) => one.task === number);
}

// Candidates; those above the ceiling as arrows at its height, with their latency in the label.
function trialTraces(candidates, ceiling_us, unit) {
  const inside = candidates.filter((one) => one.latency_us <= ceiling_us);
  const above = candidates.filter((one) => one.latency_us > ceiling_us);
  const trace = (name, chosen, y, marker) => ({
    name, mode: "markers", type: "scatter", x: chosen.map((one) => one.x), y,
    text: chosen.map((one) => `trial ${one.trial}<br>${format(one.latency_us / unit.us)} ${unit.name}`),
    marker: { size: 5, opacity: 0.6, color: colour("--c-points"), ...marker }, hovertemplate: "%{text}<extra></extra>",
  });
  return [
    trace("trial", inside, inside.map((one) => one.latency_us / unit.us), {}),
    trace("slower trial", above, above.map(() => ceiling_us / unit.us), { symbol: "triangle-up", size: 8 }),
  ];
}

function lineOf(one, weight) {
  return {
    name: one.name, width: 2.5, colour: "--c1", trial: one.trial, elapsed_s: one.elapsed_s,
    measured_s: one.measured_s, best_us: one.best_us.map((value) => value * weight),
  };
}

function linesOfAll() {
  const measured = data.tasks.filter((one) => one.best_us.length).map((one) => lineOf(one, one.weight));
  const latest = (line) => line.best_us.at(-1);
  const longest = measured.sort((one, other) => latest(other) - latest(one)).slice(0, MOST_LINES);
  const tasks = longest.map((line, i) => ({ ...line, width: 1.2, colour: PALETTE[(i + 1) % PALETTE.length] }));
  const total = { ...data.total, name: `all ${data.tasks.length} tasks`, width: 2.75, colour: "--c1" };
  if (data.network?.best_us.length) return [...tasks, { ...total, ...data.network, name: `${data.network.name}, estimated` }];
  return [...tasks, ...sumSoFar(total), ...(total.best_us.length ? [total] : [])];
}

// The sum over the tasks that have a latency, until all have one.
function sumSoFar(total) {
  const end = total.trial[0] ?? Infinity;
  const steps = data.tasks.flatMap((one) => one.trial.map((trial, i) => ({
    trial, elapsed_s: one.elapsed_s[i], measured_s: one.measured_s[i], number: one.number, us: one.weight * one.best_us[i],
  })));
  const before = steps.filter((step) => step.trial <= end).sort((one, other) => one.trial - other.trial);
  const latest = new Map();
  const sums = before.map((step) => {
    latest.set(step.number, step.us);
    return [...latest.values()].reduce((sum, us) => sum + us, 0);
  });
  const column = (name) => before.map((step) => step[name]);
  if (!sums.length) return [];
  const name = total.best_us.length ? "sum of those measured" : `sum of ${latest.size} of ${data.tasks.length}`;
  return [{
    name, width: 2, dash: "dot", colour: "--c1", trial: column("trial"), elapsed_s: column("elapsed_s"),
    measured_s: column("measured_s"), best_us: sums,
  }];
}

function curveTrace(line, unit) {
  return {
    name: escaped(line.name), mode: "lines+markers", type: "scatter", x: line[xOf.value],
    y: line.best_us.map((value) => value / unit.us), text: line.trial,
    line: { shape: "hv", width: line.width, dash: line.dash ?? "solid", color: colour(line.colour) },
    marker: { size: line.width > 2 ? 5 : 3 },
    hovertemplate: `${escaped(line.name)}<br>%{y:.4~g} ${unit.name} after trial %{text}<extra></extra>`,
  };
}

function unscheduled(chosen) {
  return chosen === null ? data.unscheduled_us : data.tasks.find((one) => one.number === chosen).unscheduled_us;
}

// A level across the whole chart.
function across(y, text, of) {
  return {
    type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colour(of), dash: "dot", width: 2 },
    label: { text, textposition: "end", font: { color: colour(of) } },
  };
}

function format(value) {
  return String(Number(value.toPrecision(4)));
}

const chart = new Chart("convergence", figure);

// The curves came with the page; the trials that are new up to its last one are fetched.
function load(fresh) {
  const mine = ++nLoads;
  return loading(chart, async () => {
    const known = points.trial.at(-1) ?? 0;
    const newer = fresh.n_trials > known
      ? await json(`/dashboard/data/jobs/${job}/points?after=${known}&up_to=${fresh.n_trials}`)
      : null;
    if (mine !== nLoads) return; // the page was brought up to date meanwhile
    data = fresh;
    if (newer) for (const [name, column] of Object.entries(newer)) points[name].push(...column);
  });
}

for (const control of [choose, xOf, isLog, isWhole, withBase]) control?.addEventListener("change", () => chart.draw());
withData(load);
