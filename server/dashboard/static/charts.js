// Plotly in the page's colours. A chart is a function that gives traces and a layout; it is drawn
// anew on request, when the colours change, and it says so where there is nothing to draw. What it
// draws came with the page's figures (`#chart-data`), so both are of one moment.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  showSendToCloud: false,
  plotlyServerURL: "",
  modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
};

// Colours that people with a colour deficiency can distinguish, for each background.
export const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];

export const X_TITLES = { trial: "Trials", elapsed_s: "Seconds of tuning", measured_s: "Seconds measured" };

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Call with the data of the page, now and whenever the page was brought up to date.
export function withData(draw) {
  const read = (page) => {
    const place = page.getElementById("chart-data");
    if (place) draw(JSON.parse(place.textContent));
  };
  document.addEventListener("felix:fresh", ({ detail }) => read(detail));
  read(document);
}

// The unit in which latencies of this size read best, and how many microseconds it has.
export function unitOf(latencies_us) {
  const least = Math.min(...latencies_us);
  if (least < 1) return { name: "ns", us: 1e-3 };
  if (least < 1e3) return { name: "µs", us: 1 };
  return least < 1e6 ? { name: "ms", us: 1e3 } : { name: "s", us: 1e6 };
}

// An axis of latencies from a little below the lowest to a little above the highest.
export function latencyAxis(title, unit, low, high, log) {
  const axis = { title: { text: `${title} (${unit.name})` }, tickformat: "~g", nticks: 7 };
  if (!log) return { ...axis, type: "linear", range: [0, 1.05 * high] };
  const decades = Math.log10(high / low);
  const space = Math.max(0.02, 0.05 * decades);
  const ticks = decades > 2.5 ? { dtick: 1 } : decades > 0.8 ? { dtick: "D2" } : {}; // powers of ten; 1, 2, 5
  return { ...axis, type: "log", range: [Math.log10(low) - space, Math.log10(high) + space], ...ticks };
}

// An axis of what is counted or timed; trials have whole numbers only.
export function progressAxis(by, last) {
  const axis = { title: { text: X_TITLES[by] }, range: [0, 1.02 * Math.max(last, 1)] };
  return by === "trial" ? { ...axis, tick0: 0, dtick: wholeStep(last), tickformat: "d" } : axis;
}

function wholeStep(span) {
  const least = Math.max(1, span / 8);
  const power = 10 ** Math.floor(Math.log10(least));
  return Math.max(1, [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least));
}

// The largest latency to show beside these: what lies above Tukey's upper fence of the logarithms
// is far from all others and would press the rest together.
export function upperFence(latencies) {
  const logs = latencies.map(Math.log).sort((one, other) => one - other);
  const quartile = (share) => logs[Math.round(share * (logs.length - 1))];
  const fence = Math.exp(quartile(0.75) + 1.5 * (quartile(0.75) - quartile(0.25)));
  const best = Math.exp(logs[0]);
  return Math.min(Math.exp(logs.at(-1)), Math.max(fence, 1.25 * best));
}

// Plotly reads some HTML in names.
export function escaped(text) {
  const short = text.length > 40 ? `${text.slice(0, 39)}…` : text;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
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
    const isFirst = !this.place.classList.contains("js-plotly-plot");
    this.place.querySelector(".chart-note")?.remove();
    const entries = layout.showlegend === false ? 0 : traces.filter((one) => one.showlegend !== false).length;
    this.place.style.setProperty("--legend-entries", entries);
    window.Plotly.react(this.place, traces, merge(base(), layout), CONFIG);
    if (isFirst) this.place.on("plotly_relayout", (change) => this.keepWhole(change));
    this.place.dataset.points = String(traces.reduce((n, t) => n + (t.x?.length || 0), 0));
  }

  // Trials stay whole numbers when somebody zooms.
  keepWhole(change) {
    const axis = this.place.layout.xaxis;
    if (axis.tickformat !== "d" || !Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
    const step = wholeStep(axis.range[1] - axis.range[0]);
    if (step !== axis.dtick) window.Plotly.relayout(this.place, { "xaxis.dtick": step });
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
    margin: { l: 56, r: 16, t: 32, b: 48 },
    colorway: PALETTE.map(colour),
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--accent") },
    newshape: { line: { color: colour("--accent") } },
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
