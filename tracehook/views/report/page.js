// The page: which rank, which time and which measure the pictures show.
"use strict";

(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  if (!at("controls")) return;
  // Named one by one, because among plotly's own is one that sends the picture's data to a server.
  const config = {
    displaylogo: false, displayModeBar: "hover", responsive: true, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };
  const shown = { place: null, view: null, mark: null, measure: "held" };
  const timed = ["memory", "heat", "pools"];
  const drawn = new Set();
  let following = false;

  function mark(layout) {
    if (shown.mark === null) return layout;
    const c = colours();
    const line = (colour, width) => ({ type: "line", x0: shown.mark, x1: shown.mark, y0: 0, y1: 1, yref: "paper", line: { color: colour, width } });
    layout.shapes = [...layout.shapes, line(c.back, 5), line(c.error, 2)];
    return layout;
  }

  function draw(id, picture) {
    const element = at(id);
    if (!element) return;
    if (!drawn.has(id)) element.textContent = "";
    const [traces, layout] = picture;
    Plotly.react(element, traces, timed.includes(id) ? mark(layout) : layout, config);
    if (!drawn.has(id)) {
      drawn.add(id);
      if (timed.includes(id)) element.on("plotly_relayout", (change) => follow(change));
      if (id === "heat") element.on("plotly_click", (event) => choose(rowOf(event.points[0].customdata)));
    }
  }

  const rowOf = (row) => (data.time.together === 1 ? row : null);

  function follow(change) {
    if (following) return;
    if ("xaxis.range[0]" in change) shown.view = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    else if (change["xaxis.range"]) shown.view = change["xaxis.range"].slice();
    else if (change["xaxis.autorange"]) shown.view = null;
    else return;
    const range = shown.view || [data.time.from, data.time.until];
    following = true;
    Promise.all(timed.filter((id) => drawn.has(id)).map((id) => Plotly.relayout(at(id), { "xaxis.range": range.slice(), "xaxis.autorange": false })))
      .finally(() => { following = false; });
  }

  function heatNote() {
    const together = data.time.together * Math.ceil(data.time.rows.length / MOST_ROWS);
    return together === 1 ? "" : ` A row stands for ${together} ranks, and shows at each moment the one that is farthest from the median of all.`;
  }

  function drawPlace() {
    draw("memory", levels(data, ["registered", "window", "held"], shown.place, shown.view));
    if (at("pools")) draw("pools", levels(data, ["window", "idle", "pool"], shown.place, shown.view));
  }

  function drawAll() {
    drawPlace();
    draw("heat", heat(data, shown.measure, shown.view));
    draw("cost", cost(data));
  }

  function choose(place) {
    if (place === null) return;
    shown.place = place;
    at("place").value = String(place);
    drawPlace();
  }

  function show(moment, place) {
    const width = Math.max((data.time.until - data.time.from) / 20, 0.0005);
    shown.mark = moment;
    shown.view = [moment - width, moment + width];
    if (place !== null) {
      shown.place = place;
      at("place").value = String(place);
    }
    at("said").textContent = `marked: ${moment.toFixed(3)} s`;
    drawAll();
    at("controls").scrollIntoView();
  }

  const number = (text) => (text === "" ? null : Number(text));
  document.querySelectorAll("button.moment").forEach((button) =>
    button.addEventListener("click", () => show(Number(button.dataset.seconds), number(button.dataset.place))));
  document.querySelectorAll("button.place").forEach((button) => button.addEventListener("click", () => choose(number(button.dataset.place))));
  at("place").addEventListener("change", () => { shown.place = number(at("place").value); drawPlace(); });
  at("measure").addEventListener("change", () => { shown.measure = at("measure").value; draw("heat", heat(data, shown.measure, shown.view)); });
  at("whole").addEventListener("click", () => { shown.view = shown.mark = null; at("said").textContent = ""; drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  at("heat-note").textContent = heatNote();
  drawAll();
})();
