// The search of one task: predicted against measured, and the descents of its rounds.

import { Chart, colour, json, latencyAxis, loading, unitOf } from "./charts.js";

const job = document.body.dataset.job;
const task = document.querySelector("select[name=task]")?.value || "0";
const choose = document.getElementById("descent-round");
let pairs = [];
let rounds = [];

const predicted = new Chart("predicted", () => {
  if (!pairs.length) return { empty: "Shown once trials with predictions were measured." };
  const unit = unitOf(pairs.map((p) => p.latency_us));
  const x = pairs.map((p) => p.latency_us / unit.us);
  const y = pairs.map((p) => p.predicted_us / unit.us);
  const ends = [Math.min(...x, ...y), Math.max(...x, ...y)];
  const wide = ends[1] > 8 * ends[0] ? { dtick: "D2" } : {}; // 1, 2, 5: more do not fit
  return {
    traces: [
      { name: "equal", x: ends, y: ends, mode: "lines", type: "scatter", hoverinfo: "skip", line: { dash: "dot", width: 1.5, color: colour("--muted") } },
      {
        name: "trial", x, y, mode: "markers", type: "scatter", text: pairs.map((p) => `trial ${p.trial}, round ${p.round}`),
        marker: { size: 6, opacity: 0.75, color: pairs.map((p) => p.round), colorscale: [[0, colour("--c2")], [1, colour("--c1")]], showscale: true, colorbar: { title: { text: "Round" }, dtick: Math.max(1, Math.ceil(pairs.at(-1).round / 6)), thickness: 12, outlinewidth: 0 } },
        hovertemplate: `%{text}<br>measured %{x:.4~g} ${unit.name}<br>predicted %{y:.4~g} ${unit.name}<extra></extra>`,
      },
    ],
    layout: { showlegend: false, xaxis: { ...latencyAxis("Measured", unit, true), ...wide }, yaxis: { ...latencyAxis("Predicted", unit, true), ...wide } },
  };
});

const descent = new Chart("descent", () => {
  const selected = rounds.filter((round) => round.steps.length && (choose.value === "" || String(round.round) === choose.value));
  if (!selected.length) return { empty: rounds.length ? "Nothing descends in these rounds: the first one warms up, and only the strategy gradient descends." : "Shown after the first round with a gradient descent." };
  const steps = [];
  let before = 0;
  for (const round of selected) {
    for (const step of round.steps) steps.push({ ...step, x: before + step.step, round: round.round });
    before = steps.at(-1).x + 1;
  }
  const x = steps.map((step) => step.x);
  const text = steps.map((step) => `round ${step.round}, step ${step.step}`);
  const line = (name, key, axis, variable, more = {}) => ({
    name, x, y: steps.map((step) => step[key] ?? null), text, type: "scatter", mode: "lines", yaxis: axis,
    line: { width: 1.8, color: colour(variable) }, hovertemplate: `%{text}<br>${name} %{y:.4g}<extra></extra>`, ...more,
  });
  return {
    traces: [
      line("loss, best seed", "loss", "y", "--c1"),
      line("loss, mean", "mean_loss", "y", "--c-points"),
      line("penalty", "penalty", "y2", "--c2"),
      line("temperature", "temperature", "y3", "--c3"),
    ],
    layout: {
      xaxis: { title: { text: "Steps" }, anchor: "y3" },
      yaxis: { domain: [0.56, 1], title: { text: "Loss" } },
      yaxis2: { domain: [0.28, 0.5], title: { text: "Penalty" }, rangemode: "tozero" },
      yaxis3: { domain: [0, 0.22], title: { text: "Temperature" }, type: "log", dtick: 1 },
    },
  };
});

const load = () => {
  loading(predicted, async () => {
    pairs = (await json(`/v1/jobs/${job}/predicted?task=${task}`)).points;
  });
  loading(descent, async () => {
    const after = rounds.length ? rounds.at(-1).round : -1;
    const newer = (await json(`/v1/jobs/${job}/search?task=${task}&after=${after}&limit=1000`)).rounds;
    rounds.push(...newer.filter((round) => round.round > after));
    const known = new Set([...choose.options].map((option) => option.value));
    for (const { round, steps } of rounds) {
      if (steps.length && !known.has(String(round))) choose.append(new Option(`round ${round}`, round));
    }
  });
};

choose.addEventListener("change", () => descent.draw());
let timer = 0;
document.addEventListener("felix:event", ({ detail }) => {
  if (timer || !["trial", "round", "final"].includes(detail.type)) return;
  timer = setTimeout(() => {
    timer = 0;
    load();
  }, 3000);
});
load();
