"use strict";
(async () => {
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);

  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;

  function themed(layout) {
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
    const result = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), size: 12 },
      margin: narrow() ? { l: 44, r: 12, t: 30, b: 40 } : { l: 60, r: 24, t: 32, b: 48 },
      legend: { orientation: "h", y: narrow() ? -0.3 : -0.22, yanchor: "top", x: 0 }, hoverlabel: { namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
      dragmode: narrow() ? false : "zoom", ...layout,
    };
    for (const key of Object.keys(result)) {
      if (/^[xy]axis/.test(key)) result[key] = { ...axis, ...result[key] };
    }
    if (result.yaxis2) result.yaxis2.showgrid = false;
    return result;
  }

  // Plotly would offer a button that uploads the chart: nothing leaves this page.
  const upload = { showSendToCloud: false, plotlyServerURL: "" };
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"], ...upload };
  if (narrow()) config.displayModeBar = false;  // fingers zoom by themselves
  for (const plot of plots) {
    const { data, layout } = figures[plot.id];
    await Plotly.newPlot(plot, data, themed(layout), config);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of plots) Plotly.react(plot, plot.data, themed(figures[plot.id].layout), config);
  });
  // A chart that was drawn while folded has no size yet.
  for (const fold of document.querySelectorAll("details")) {
    fold.addEventListener("toggle", () => {
      if (fold.open) for (const plot of fold.querySelectorAll(".plot")) Plotly.Plots.resize(plot);
    });
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", () => {
      const fold = document.querySelector(link.getAttribute("href")).closest("details");
      if (fold) fold.open = true;
    });
  }
  document.body.dataset.ready = "yes";
})();
