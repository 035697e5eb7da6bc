// Several jobs' curves laid over one another: as latency, or as a share of the best.

import {
  Chart, PALETTE, colour, escaped, latencyAxis, progressAxis, unitOf, upperFence, withData,
} from "./charts.js";

const place = document.getElementById("curves-of");
const yOf = document.getElementById("compare-y");
const xOf = document.getElementById("compare-x");
let jobs = [];

function figure() {
  const measured = jobs.filter((job) => job.best_us_now !== null && job.best_us.length);
  if (!measured.length) return { empty: "None of these jobs has measured anything yet." };
  const best = Math.min(...measured.map((job) => job.best_us_now));
  const all = measured.flatMap((job) => job.best_us);
  const unit = unitOf(all);
  const traces = measured.map((job) => trace(job, best, unit));
  const last = Math.max(...traces.flatMap((one) => one.x));
  const xaxis = progressAxis(xOf.value, last);
  const uirevision = [xOf.value, yOf.value].join();
  return { traces, layout: { uirevision, xaxis, yaxis: yAxis(all, unit), showlegend: true } };
}

// A share is of where a job stands now, as its figures say. A short measurement that was luckier
// than the long one at the end is no better than that: it counts as all of it.
function trace(job, best, unit) {
  const reference = { share: job.best_us_now, overall: best }[yOf.value];
  const index = jobs.indexOf(job);
  return {
    name: `#${job.id} ${escaped(job.name)}`, mode: "lines+markers", type: "scatter", x: job[xOf.value],
    y: job.best_us.map((us) => (reference ? Math.min(100, (100 * reference) / us) : us / unit.us)),
    text: job.best_us.map((us) => `${Number((us / unit.us).toPrecision(4))} ${unit.name}`),
    line: { shape: "hv", width: 2.5, color: colour(PALETTE[index % PALETTE.length]) },
    marker: { size: 5, symbol: index % 8 },
    hovertemplate: `%{x:.4~g}: %{text}${reference ? ", %{y:.1f} %" : ""}<extra>#${job.id}</extra>`,
  };
}

function yAxis(all, unit) {
  if (yOf.value === "latency") {
    return latencyAxis("Best latency", unit, Math.min(...all) / unit.us, upperFence(all) / unit.us, true);
  }
  const title = { text: yOf.value === "share" ? "% of the job's best" : "% of the best of all" };
  return { title, range: [0, 104], dtick: 20, ticksuffix: " %" };
}

if (place) {
  const chart = new Chart("curves", figure);
  for (const control of [xOf, yOf]) control.addEventListener("change", () => chart.draw());
  withData((data) => {
    jobs = data.jobs;
    chart.draw();
  });
}
