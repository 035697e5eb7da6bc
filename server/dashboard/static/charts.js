// Plotly in the page's colours. A chart is a function that gives traces and a layout; it is drawn
// anew on request, when the colours change, and it says so where there is nothing to draw.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

// Colours that people with a colour deficiency can distinguish, for each background.
export const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The unit in which latencies of this size read best, and how many microseconds it has.
export function unitOf(latencies_us) {
  const least = Math.min(...latencies_us);
  if (least < 1) return { name: "ns", us: 1e-3 };
  if (least < 1e3) return { name: "µs", us: 1 };
  return least < 1e6 ? { name: "ms", us: 1e3 } : { name: "s", us: 1e6 };
}

export function latencyAxis(title, unit, log) {
  return {
    title: { text: `${title} (${unit.name})` }, type: log ? "log" : "linear",
    rangemode: log ? "normal" : "tozero", tickformat: "~g", nticks: 6,
  };
}

export class Chart {
  // `figure()` gives {traces, layout}, or {empty: text}.
  constructor(id, figure) {
    this.place = document.getElementById(id);
    this.figure = figure;
    this.waiting = false;
    document.addEventListener("felix:theme", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // Draw at the next frame, once however often it is called.
  draw() {
    if (this.waiting || !this.place) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.now();
    });
  }

  now() {
    const { traces, layout, empty } = this.figure();
    if (empty) {
      this.say(empty);
      return;
    }
    this.place.querySelector(".chart-note")?.remove();
    window.Plotly.react(this.place, traces, merge(base(), layout), CONFIG);
    this.place.dataset.points = String(traces.reduce((n, t) => n + (t.x?.length || 0), 0));
  }

  say(text) {
    if (this.place.classList.contains("js-plotly-plot")) window.Plotly.purge(this.place);
    const note = document.createElement("p");
    note.className = "chart-note";
    note.textContent = text;
    this.place.replaceChildren(note);
  }
}

export async function json(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

// Run something that loads data for a chart; say so if it fails, and offer nothing that is wrong.
export async function loading(chart, work) {
  try {
    await work();
    chart.draw();
  } catch {
    chart.say("The data could not be loaded. Load the page again to try once more.");
  }
}

function base() {
  const axis = {
    gridcolor: colour("--line"),
    linecolor: colour("--line"),
    zerolinecolor: colour("--line"),
    automargin: true,
    title: { standoff: 12 },
  };
  const narrow = window.innerWidth < 640;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: narrow ? 11 : 13, color: colour("--text") },
    margin: { l: 56, r: 16, t: 12, b: 48 },
    colorway: PALETTE.map(colour),
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    xaxis: { ...axis },
    yaxis: { ...axis },
    yaxis2: { ...axis },
    yaxis3: { ...axis },
  };
}

function merge(one, other) {
  const result = { ...one };
  for (const [name, value] of Object.entries(other || {})) {
    const both = value && typeof value === "object" && !Array.isArray(value);
    result[name] = both ? merge(one[name] || {}, value) : value;
  }
  return result;
}
