"use strict";
(() => {
  const live = document.getElementById("live");
  const plot = document.getElementById("curves");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000"];

  function draw(progress) {
    const methods = [...new Set(progress.curves.map((curve) => curve.method))];
    const shown = new Set();
    const data = progress.curves.map((curve) => {
      const first = !shown.has(curve.method);
      shown.add(curve.method);
      return {
        x: curve.personal.map((point) => point[0]), y: curve.personal.map((point) => point[1]), mode: "lines", name: curve.method,
        legendgroup: curve.method, showlegend: first, line: { width: 2, color: colours[methods.indexOf(curve.method) % colours.length] },
      };
    });
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), automargin: true };
    const metric = progress.curves.length ? progress.curves[0].metric : "";
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink") }, margin: { l: 56, r: 16, t: 10, b: 40 },
      xaxis: { ...axis, title: { text: "round" } }, yaxis: { ...axis, title: { text: metric } }, legend: { orientation: "h", y: -0.25 },
    };
    Plotly.react(plot, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
  }

  function show(progress) {
    document.getElementById("whole").value = progress.fraction;
    const body = document.getElementById("cells");
    body.replaceChildren(...progress.rows.map((row) => {
      const line = document.createElement("tr");
      for (const text of [row.label, row.rounds, row.score]) {
        const cell = document.createElement("td");
        cell.textContent = text;
        line.append(cell);
      }
      return line;
    }));
    draw(progress);
  }

  draw(JSON.parse(document.getElementById("progress").textContent));
  if (live.dataset.state !== "running") return;
  const events = new EventSource(live.dataset.events);
  events.addEventListener("message", (event) => {
    const progress = JSON.parse(event.data);
    show(progress);
    document.getElementById("output").textContent = progress.output;
    if (progress.state !== "running") {
      events.close();
      location.reload();
    }
  });
})();
