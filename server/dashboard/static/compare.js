// Several jobs' curves laid over one another: as latency, or as a share of the best.

import { Chart, PALETTE, colour, json, latencyAxis, loading, unitOf } from "./charts.js";

const place = document.getElementById("curves-of");
const yOf = document.getElementById("compare-y");
const xOf = document.getElementById("compare-x");
const TITLES = { trial: "Trials", elapsed_s: "Seconds of tuning", measured_s: "Seconds measured" };
let curves = [];

function figure() {
  const measured = curves.filter((curve) => curve.points.length);
  if (!measured.length) return { empty: "None of these jobs has measured anything yet." };
  const x = xOf.value;
  const y = yOf.value;
  const best = Math.min(...measured.flatMap((curve) => curve.points.map((p) => p.best_us)));
  const unit = unitOf([best]);
  const value = {
    latency: (p) => p.best_us / unit.us,
    share: (p) => 100 * p.share_of_best,
    overall: (p) => (100 * best) / p.best_us,
  }[y];
  const text = y === "latency" ? `%{y:.4~g} ${unit.name}` : "%{y:.1f} %";
  const traces = measured.map((curve) => ({
    name: `#${curve.job_id} ${escaped(curve.name)}`, mode: "lines+markers", type: "scatter",
    x: curve.points.map((p) => p[x]), y: curve.points.map(value),
    line: { shape: "hv", width: 2.5, color: colour(PALETTE[curves.indexOf(curve) % PALETTE.length]) },
    marker: { size: 5, symbol: curves.indexOf(curve) % 8 },
    hovertemplate: `%{x:.4~g}: ${text}<extra>#${curve.job_id}</extra>`,
  }));
  const yaxis = y === "latency" ? latencyAxis("Best latency", unit, true)
    : { title: { text: y === "share" ? "% of the job's best" : "% of the best of all" }, range: [0, 105], ticksuffix: " %" };
  return { traces, layout: { xaxis: { title: { text: TITLES[x] }, rangemode: "tozero" }, yaxis, showlegend: true } };
}

// Plotly reads some HTML in names.
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").slice(0, 40);
}

if (place) {
  const chart = new Chart("curves", figure);
  const query = place.dataset.jobs.split(",").map((number) => `job=${number}`).join("&");
  const load = () => loading(chart, async () => {
    curves = (await json(`/v1/curves?${query}`)).items;
  });
  for (const control of [xOf, yOf]) control.addEventListener("change", () => chart.draw());
  load();
  if (document.body.dataset.poll) setInterval(() => document.hidden || load(), 4000);
}
