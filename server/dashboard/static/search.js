// The search of one task: predicted against measured, and the descents of its rounds.

import { Chart, colour, json, latencyAxis, loading, unitOf, withData } from "./charts.js";

const job = document.body.dataset.job;
const choose = document.getElementById("descent-round");
let pairs = { trial: [] };
let rounds = [];

const predicted = new Chart("predicted", () => {
  if (!pairs.trial.length) return { empty: "Shown once trials with predictions were measured." };
  const unit = unitOf(pairs.latency_us);
  const x = pairs.latency_us.map((value) => value / unit.us);
  const y = pairs.predicted_us.map((value) => value / unit.us);
  const ends = [Math.min(...x, ...y), Math.max(...x, ...y)];
  const axis = (title) => latencyAxis(title, unit, ...ends, true);
  return {
    traces: [
      { name: "equal", x: ends, y: ends, mode: "lines", type: "scatter", hoverinfo: "skip", line: { dash: "dot", width: 1.5, color: colour("--muted") } },
      {
        name: "trial", x, y, mode: "markers", type: "scatter", text: pairs.trial.map((trial, i) => `trial ${trial}, round ${pairs.round[i]}`),
        marker: { size: 6, opacity: 0.75, color: pairs.round, colorscale: [[0, colour("--c2")], [1, colour("--c1")]], showscale: true, colorbar: { title: { text: "Round" }, dtick: Math.max(1, Math.ceil(pairs.round.at(-1) / 6)), thickness: 12, outlinewidth: 0 } },
        hovertemplate: `%{text}<br>measured %{x:.4~g} ${unit.name}<br>predicted %{y:.4~g} ${unit.name}<extra></extra>`,
      },
    ],
    layout: { showlegend: false, xaxis: axis("Measured"), yaxis: axis("Predicted") },
  };
});

const descent = new Chart("descent", () => {
  const selected = rounds.filter((round) => round.steps.length && (choose.value === "" || String(round.round) === choose.value));
  if (!selected.length) return { empty: rounds.length ? "Nothing descends in these rounds: only the strategy gradient descends, after a round that warms up." : "Shown after the first round with a gradient descent." };
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

// The pairs came with the page; descents are fetched up to the last round that it shows.
function load(fresh) {
  pairs = fresh;
  predicted.draw();
  return loading(descent, async () => {
    const after = rounds.length ? rounds.at(-1).round : -1;
    if (fresh.last_round <= after) return;
    const newer = (await json(`/v1/jobs/${job}/search?task=${fresh.task}&after=${after}&limit=1000`)).rounds;
    rounds.push(...newer.filter((round) => round.round > (rounds.at(-1)?.round ?? -1) && round.round <= fresh.last_round));
    const known = new Set([...choose.options].map((option) => option.value));
    for (const { round, steps } of rounds) {
      if (steps.length && !known.has(String(round))) choose.append(new Option(`round ${round}`, round));
    }
  });
}

choose.addEventListener("change", () => descent.draw());
withData(load);
