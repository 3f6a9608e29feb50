// The pictures: each function turns a part of the page's data into traces and a layout of plotly.
"use strict";

const MiB_IN_GiB = 1024;
const MOST_ROWS = 128; // of a heat map, so that a single one can be seen
const SERIES = {
  held: ["held", "#6b7688"], registered: ["registered", "#2f7ed8"], window: ["in windows", "#d9822b"],
  pool: ["held by our pools", "#7a5cc4"], idle: ["idle in the bank", "#c4487f"],
};
const DOTTED = ["held", "pool"]; // often the same as another, and drawn on top of it

// plotly reads a little HTML in texts; what came from a log may not be read that way.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return { back: get("--back"), text: get("--text"), quiet: get("--quiet"), line: get("--line"), soft: get("--soft"), error: get("--error") };
}

function layout(height, more) {
  const c = colours();
  const axis = { gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, tickfont: { color: c.quiet }, automargin: true };
  return {
    height, paper_bgcolor: c.back, plot_bgcolor: c.back, font: { color: c.text, size: 12, family: "system-ui, sans-serif" },
    margin: { l: 120, r: 70, t: STRIP, b: 42 }, hoverlabel: { bgcolor: c.soft, bordercolor: c.line, font: { color: c.text } },
    legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, font: { color: c.text } }, shapes: [], annotations: [],
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}

// Pictures with a time axis lie exactly below each other, whatever their labels; plotly's buttons have the strip above.
const STRIP = 34;
const aligned = (top, bottom) => ({ l: 150, r: 90, t: top, b: bottom, autoexpand: false });
const label = (text) => plain(text.length > 22 ? `${text.slice(0, 21)}\u2026` : text);

// Where a process was silent: from its last event or call to its end.
function silence(data, place) {
  const span = place === null || place === undefined ? null : data.silent[place];
  if (!span) return {};
  const c = colours();
  return {
    shapes: [{ type: "rect", x0: span[0], x1: span[1], y0: 0, y1: 1, yref: "paper", layer: "above", line: { width: 0 }, fillcolor: c.quiet, opacity: 0.2 }],
    annotations: [{ x: span[1], xanchor: "right", y: 1, yanchor: "top", yref: "paper", text: "silent", showarrow: false, font: { color: c.quiet } }],
  };
}

const seconds = (data, view) => ({ title: { text: "seconds since the job began" }, range: view || [data.time.from, data.time.until], fixedrange: false });

function readings(data) {
  const step = (data.time.until - data.time.from) / data.time.bins;
  return Array.from({ length: data.time.bins }, (_, i) => data.time.from + (i + 1) * step);
}

function unit(values) {
  const most = values.reduce((a, b) => Math.max(a, b || 0), 0);
  return most >= 4 * MiB_IN_GiB ? ["GiB", MiB_IN_GiB] : ["MiB", 1];
}

function faded(colour, share) {
  return `rgba(${[1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)).join(",")},${share})`;
}

// Bytes over time of one place, or the spread over all.
function levels(data, names, place, view) {
  const curves = names.map((name) => (place === null ? spreadOf(data, name) : curveOf(data, name, place)));
  const [word, scale] = unit(curves.flatMap((curve) => curve.high));
  const traces = [];
  curves.forEach((curve, i) => {
    const [label, colour] = SERIES[names[i]];
    const line = (values, more) => ({
      type: "scatter", mode: "lines", x: curve.x, y: values.map((v) => (v === null ? null : v / scale)),
      line: { color: colour, width: 1.5, shape: "hv", dash: DOTTED.includes(names[i]) ? "dot" : "solid" }, legendgroup: names[i], name: label, ...more,
    });
    const thin = { line: { width: 0, shape: "hv", color: colour }, showlegend: false };
    const say = (what, who) => ({ hovertemplate: `${label}${what}: %{y:.4~g} ${word}${who ? " (%{text})" : ""}<extra></extra>`, text: who });
    if (curve.low) {
      traces.push(line(curve.low, { ...thin, ...say(", lowest", curve.lowest) }));
      traces.push(line(curve.high, { ...thin, ...say(", highest", curve.highest), fill: "tonexty", fillcolor: faded(colour, 0.22) }));
    }
    traces.push(line(curve.mid, { ...say(curve.low ? ", median" : "", null) }));
  });
  const top = { title: { text: word }, rangemode: "tozero", fixedrange: true };
  return [traces, layout(304, { hovermode: "x", margin: aligned(STRIP, 42), ...silence(data, place), xaxis: seconds(data, view), yaxis: top })];
}

function spreadOf(data, name) {
  const band = data.time.bands[name];
  const who = (places) => places.map((p) => (p === null ? "" : plain(data.places[p][0])));
  const same = data.places.length < 2;
  return same ? { x: readings(data), mid: band.mid, high: band.high }
    : { x: readings(data), mid: band.mid, low: band.low, high: band.high, lowest: who(band.lowest), highest: who(band.highest) };
}

function curveOf(data, name, place) {
  const mid = data.time.series[name][Math.floor(place / data.time.together)];
  return { x: readings(data), mid, high: mid };
}

// What the heat map draws: a row a place, or, of many, a row for several: at each moment the one that is farthest from the median.
function heatRows(data, measure) {
  const all = data.time.series[measure], mid = data.time.bands[measure].mid;
  const together = Math.ceil(all.length / MOST_ROWS);
  const distance = (v, bin) => (mid[bin] === null ? 0 : v === null ? Infinity : Math.abs(v - mid[bin]));
  const rows = [];
  for (let first = 0; first < all.length; first += together) {
    const group = all.slice(first, first + together);
    const who = mid.map((_, bin) => group.reduce((far, row, i) => (distance(row[bin], bin) > distance(group[far][bin], bin) ? i : far), 0));
    rows.push({ first, many: group.length, name: plain(data.time.rows[first]), who: who.map((i) => first + i), values: who.map((i, bin) => group[i][bin]) });
  }
  return { rows, together };
}

// Of a row that stands for several: when all of them were silent.
function silentRow(data, row) {
  const spans = data.silent.slice(row.first * data.time.together, (row.first + row.many) * data.time.together);
  if (!spans.length || spans.includes(null)) return null;
  const from = Math.max(...spans.map((span) => span[0])), until = Math.min(...spans.map((span) => span[1]));
  return from < until ? [from, until] : null;
}

function heat(data, measure, view) {
  const { rows, together } = heatRows(data, measure), names = rows.map((row) => row.name);
  const [word, scale] = measure === "ms" ? ["ms", 1] : unit(rows.flatMap((row) => row.values));
  const every = Math.max(1, Math.ceil(names.length / 32));
  const ticks = names.map((_, i) => i).filter((i) => i % every === 0);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const trace = {
    type: "heatmap", x: readings(data), y: names.map((_, i) => i), z: rows.map((row) => row.values.map((v) => (v === null ? null : v / scale))),
    zmin: 0, colorscale: dark ? [[0, "#1b2330"], [0.5, "#2f6db5"], [1, "#ffd37a"]] : [[0, "#eef3f9"], [0.5, "#5b9bd5"], [1, "#5a1e6b"]],
    hoverongaps: false, text: rows.map((row) => row.who.map((i) => plain(data.time.rows[i]))), customdata: rows.map((row) => row.who),
    hovertemplate: `%{text}<br>at %{x:.3f} s: %{z:.4~g} ${word}<extra></extra>`,
    colorbar: { title: { text: word }, thickness: 12, outlinewidth: 0, nticks: 5, tickfont: { color: colours().quiet } },
  };
  if (!rows.some((row) => row.values.some((v) => v > 0))) trace.zmax = 1;
  const quiet = rows.map((row, i) => ({ i, row, span: silentRow(data, row) })).filter((one) => one.span);
  const hatched = {
    type: "bar", orientation: "h", showlegend: false, y: quiet.map((one) => one.i), base: quiet.map((one) => one.span[0]),
    x: quiet.map((one) => one.span[1] - one.span[0]), width: 1,
    marker: { color: "rgba(0,0,0,0)", line: { width: 0 }, pattern: { shape: "/", size: 7, solidity: 0.25, fgcolor: colours().text, bgcolor: "rgba(0,0,0,0)" } },
    customdata: quiet.map((one) => [one.row.who[0], one.row.name, ...one.span]),
    hovertemplate: "%{customdata[1]}: silent from %{customdata[2]:.3f} to %{customdata[3]:.3f} s<extra></extra>",
  };
  return [[trace, hatched], layout(Math.max(194, 114 + names.length * Math.max(4, Math.min(16, 512 / names.length))), {
    plot_bgcolor: dark ? "#5a4c36" : "#ecdcb8", margin: aligned(STRIP, 42), barmode: "overlay", bargap: 0, xaxis: seconds(data, view),
    yaxis: { range: [names.length - 0.5, -0.5], tickvals: ticks, ticktext: ticks.map((i) => label(data.time.rows[rows[i].first])), showgrid: false, fixedrange: true },
  }), together];
}

// Time of a rank in NCCL, per communicator and kind: the median, and from the fastest to the slowest.
function cost(data) {
  const found = data.cost, names = found.names.map((name, i) => plain(`${name}, ${found.kinds[i]}`));
  const some = (ms) => Math.max(ms, 0.0001); // zero has no place on a logarithmic axis
  const of = (kind, colour) => {
    const at = names.map((_, i) => i).filter((i) => found.kinds[i] === kind);
    return {
      type: "scatter", mode: "markers", name: kind, y: at.map((i) => names[i]), x: at.map((i) => some(found.mid[i])), marker: { color: colour, size: 9 },
      error_x: {
        type: "data", symmetric: false, color: colour, thickness: 1.5, width: 4,
        array: at.map((i) => some(found.high[i]) - some(found.mid[i])), arrayminus: at.map((i) => some(found.mid[i]) - some(found.low[i])),
      },
      customdata: at.map((i) => [found.low[i], found.high[i], plain(found.slowest[i])]),
      hovertemplate: "%{y}: %{x:.4~g} ms<br>fastest %{customdata[0]:.4~g} ms, slowest %{customdata[1]:.4~g} ms (%{customdata[2]})<extra></extra>",
    };
  };
  return [[of("local", SERIES.registered[1]), of("window", SERIES.window[1])], layout(Math.max(150, 90 + 18 * names.length), {
    hovermode: "closest", xaxis: { title: { text: "milliseconds a rank (logarithmic)" }, type: "log" },
    yaxis: { autorange: "reversed", categoryorder: "array", categoryarray: names, fixedrange: true },
  })];
}
