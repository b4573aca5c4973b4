// The pages work without this file. It adds the interactive plot, news of open sessions, and the keys of the footer.
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
  const MAX_BUDGET_SHARE = 3;

  let drawn = null;

  async function drawPlot() {
    const figure = document.querySelector("figure[data-plot]");
    if (!figure || typeof uPlot === "undefined") return;
    const answer = await fetch(figure.dataset.plot, { headers: { accept: "application/json" } });
    const plot = answer.ok ? await answer.json() : {};
    if (!plot.columns || !plot.columns[0].length) return;
    const area = figure.querySelector(".plot-area");
    const count = plot.columns[0].length;
    const totals = plot.columns[PARTS.length];
    const top = Math.max(...totals);
    const budget = Math.max(...plot.budget);
    const drops = new Map(plot.drops.map(([request, change]) => [plot.requests.indexOf(request), change]));
    const what = plot.is_billed ? "answer" : "request";
    let tip = figure.querySelector(".plot-tip");
    if (!tip) {
      tip = document.createElement("p");
      tip.className = "plot-tip";
      area.after(tip);
    }
    const idle = "Point at a step for its parts; click to go to its message.";
    tip.textContent = idle;
    const line = soft();
    // A request is a step from its place to the next one, so the last needs a place after it.
    const places = [...plot.columns[0].keys(), count];
    const extended = (values) => [...values, values[count - 1]];
    // The highest sum is drawn first, so that each part stays visible as a band.
    const order = PARTS.map((_, index) => PARTS.length - 1 - index);
    const data = [places, ...[plot.budget, ...order.map((index) => plot.columns[index + 1])].map(extended)];
    const steps = uPlot.paths.stepped({ align: 1 });
    const band = (name, label) => ({ label, fill: color(name), stroke: color(name), width: 0, paths: steps, points: { show: false } });
    const series = [
      {},
      { ...band("free", "budget"), stroke: line, width: 1.5 },
      ...order.map((index) => band(PARTS[index], LABELS[index])),
    ];
    const axis = { stroke: line, grid: { stroke: line, width: 0.15 }, ticks: { show: false }, font: "11px system-ui", labelFont: "11px system-ui", labelSize: 16, labelGap: 0 };
    const under = (chart) => {
      const { left } = chart.cursor;
      return left === null || left < 0 ? null : Math.min(count - 1, Math.max(0, Math.floor(chart.posToVal(left, "x"))));
    };
    const options = {
      width: Math.max(280, area.clientWidth),
      height: 240,
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [0, count] }, y: { range: [0, budget < MAX_BUDGET_SHARE * top ? Math.max(top, budget) * 1.04 : top * 1.08] } },
      axes: [
        { ...axis, size: 24, label: what, values: (_, ticks) => ticks.map((at) => (Number.isInteger(at) && plot.requests[at] !== undefined ? plot.requests[at] : "")) },
        { ...axis, size: 46, label: "tokens", values: (_, ticks) => ticks.map(short) },
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
          const at = under(chart);
          if (at === null) { tip.textContent = idle; return; }
          const sizes = LABELS.map((label, index) => [label, Object.values(plot.parts)[index][at]]);
          sizes.push(["free", Math.max(0, plot.budget[at] - totals[at])]);
          const listed = sizes.filter(([, size]) => size).map(([label, size]) => `${label} ${short(size)}`).join(", ");
          const drop = drops.has(at) ? ` · after change ${drops.get(at)}` : "";
          tip.textContent = `${what} ${plot.is_billed ? "#" : ""}${plot.requests[at]}: ${totals[at].toLocaleString("en")} tokens (${listed})${drop}`;
        }],
      },
    };
    area.replaceChildren();
    if (drawn) drawn.destroy();
    drawn = new uPlot(options, data, area);
    drawn.over.addEventListener("click", () => {
      const at = under(drawn);
      if (at === null || drawn.select.width > 4) return;
      const position = plot.positions[at];
      location.href = `${figure.dataset.session}?from=${Math.max(0, position - 8)}#m-${position}`;
    });
    figure.dataset.drawn = String(count);
  }

  // A page that is open is told of changes, and asks for itself again. A browser opens few connections to one server, so
  // a page that nobody sees lets go of its own.
  let news = null;

  function follow() {
    const page = document.querySelector("main[data-live]");
    if (news) news.close();
    news = null;
    if (!page || document.hidden) return;
    news = new EventSource(page.dataset.live);
    news.onmessage = () => htmx.trigger(page.isConnected ? page : document.querySelector("main[data-live]"), "changed");
  }

  function step(direction) {
    const rows = [...document.querySelectorAll(".row")];
    const at = rows.indexOf(document.activeElement.closest(".row"));
    const next = rows[at < 0 ? (direction > 0 ? rows.findIndex((row) => row.getBoundingClientRect().top > 60) : rows.length - 1) : at + direction];
    if (next) { next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest" }); }
  }
  const open = (selector) => document.querySelector(selector)?.click();

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const action = {
      "/": () => document.querySelector(".search input")?.focus(),
      j: () => step(1),
      k: () => step(-1),
      n: () => open("a[rel=next]"),
      p: () => open("a[rel=prev]"),
      h: () => open("a[rel=home]"),
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
  document.addEventListener("visibilitychange", follow);
  drawPlot();
  follow();
})();
