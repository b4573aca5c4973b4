// The pages work without this file. It adds the interactive plot and the keys that the footer names.
"use strict";

(function () {
  const PARTS = ["system", "tools", "summary", "user", "assistant", "tool-output"];
  const LABELS = ["system text", "tools", "summaries", "user", "assistant", "tool output"];
  const color = (name) => {
    const probe = document.createElement("span");
    probe.className = `part-${name}`;
    document.body.append(probe);
    const found = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return found;
  };
  const soft = () => getComputedStyle(document.querySelector(".foot")).color;
  const short = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${Math.round(n / 1e3)}k` : n.toLocaleString("en"));

  let drawn = null;

  async function drawPlot() {
    const figure = document.querySelector("figure[data-plot]");
    if (!figure || typeof uPlot === "undefined") return;
    const answer = await fetch(figure.dataset.plot, { headers: { accept: "application/json" } });
    const plot = answer.ok ? await answer.json() : {};
    if (!plot.columns || !plot.columns[0].length) return;
    const area = figure.querySelector(".plot-area");
    const count = plot.columns[0].length;
    const places = plot.columns[0].map((_, index) => index);
    const top = Math.max(...plot.columns[PARTS.length]);
    const budget = Math.max(...plot.budget);
    const drops = new Map(plot.drops.map(([request, change]) => [plot.requests.indexOf(request), change]));
    let tip = figure.querySelector(".plot-tip");
    if (!tip) {
      tip = document.createElement("p");
      tip.className = "plot-tip";
      area.after(tip);
    }
    const idle = "Click a point to go to its message.";
    tip.textContent = idle;
    const line = soft();
    // The highest sum is drawn first, so that each part stays visible as a band.
    const order = PARTS.map((_, index) => PARTS.length - 1 - index);
    const data = [places, ...order.map((index) => plot.columns[index + 1]), plot.budget];
    const series = [
      {},
      ...order.map((index) => ({ label: LABELS[index], fill: color(PARTS[index]), stroke: color(PARTS[index]), width: 0, points: { show: false } })),
      { label: "budget", stroke: line, width: 1.5, points: { show: false } },
    ];
    const axis = { stroke: line, grid: { stroke: line, width: 0.15 }, ticks: { show: false }, font: "11px system-ui" };
    const options = {
      width: Math.max(280, area.clientWidth),
      height: 230,
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: [0, budget < 3 * top ? Math.max(top, budget) * 1.04 : top * 1.08] } },
      axes: [
        { ...axis, size: 26, values: (_, ticks) => ticks.map((at) => (Number.isInteger(at) && plot.requests[at] !== undefined ? plot.requests[at] : "")) },
        { ...axis, size: 52, values: (_, ticks) => ticks.map(short) },
      ],
      series,
      hooks: {
        draw: [(chart) => {
          const pen = chart.ctx;
          pen.save();
          pen.strokeStyle = color("summary");
          pen.setLineDash([4, 4]);
          for (const at of drops.keys()) {
            const x = Math.round(chart.valToPos(at, "x", true)) + 0.5;
            pen.beginPath();
            pen.moveTo(x, chart.bbox.top);
            pen.lineTo(x, chart.bbox.top + chart.bbox.height);
            pen.stroke();
          }
          pen.restore();
        }],
        setCursor: [(chart) => {
          const at = chart.cursor.idx;
          if (at === null || at === undefined) { tip.textContent = idle; return; }
          const sizes = LABELS.map((label, index) => [label, Object.values(plot.parts)[index][at]]).filter(([, size]) => size);
          const total = plot.columns[PARTS.length][at];
          const drop = drops.has(at) ? ` · after change ${drops.get(at)}` : "";
          tip.textContent = `${plot.is_billed ? "answer #" : "request "}${plot.requests[at]}: ${total.toLocaleString("en")} tokens (${sizes.map(([label, size]) => `${label} ${short(size)}`).join(", ")})${drop}`;
        }],
      },
    };
    area.replaceChildren();
    if (drawn) drawn.destroy();
    drawn = new uPlot(options, data, area);
    drawn.over.addEventListener("click", () => {
      const at = drawn.cursor.idx;
      if (at === null || at === undefined || drawn.select.width > 4) return;
      const position = plot.positions[at];
      location.href = `${figure.dataset.session}?from=${Math.max(0, position - 8)}#m-${position}`;
    });
    figure.dataset.drawn = String(count);
  }

  function step(direction) {
    const rows = [...document.querySelectorAll(".row")];
    const at = rows.indexOf(document.activeElement.closest(".row"));
    const next = rows[at < 0 ? (direction > 0 ? rows.findIndex((row) => row.getBoundingClientRect().top > 60) : rows.length - 1) : at + direction];
    if (next) { next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest" }); }
  }
  const follow = (selector) => document.querySelector(selector)?.click();

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const action = {
      "/": () => document.querySelector(".search input")?.focus(),
      j: () => step(1),
      k: () => step(-1),
      n: () => follow("a[rel=next]"),
      p: () => follow("a[rel=prev]"),
      h: () => follow("a[rel=home]"),
      Enter: () => (document.activeElement.matches?.(".row") ? document.activeElement.querySelector("a")?.click() : null),
    }[event.key];
    if (!action) return;
    if (event.key === "/") event.preventDefault();
    action();
  });

  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawPlot, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPlot);
  document.addEventListener("htmx:after:swap", drawPlot);
  drawPlot();
})();
