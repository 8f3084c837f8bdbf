// Draws the charts in the colours of the light or dark page, and shows or hides Runs in all of them.
"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const config = {
    responsive: true,
    displaylogo: false,
    // plotly's own button would send the chart to its cloud.
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"],
    plotlyServerURL: "",
  };

  // The current value of a custom property: computed values resolve light-dark().
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

  // The common look of all charts; a chart's own layout takes precedence.
  const template = () => {
    const [ink, quiet, rule, panel, paper] = ["--ink", "--quiet", "--rule", "--panel", "--paper"].map(colour);
    const axis = { gridcolor: rule, linecolor: rule, tickfont: { size: 12 }, title: { standoff: 10 } };
    return {
      data: { bar: [{ marker: { line: { color: paper, width: 0 } } }] },
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
        margin: { l: 60, r: 20, t: 30, b: 44 },
        hovermode: "x unified",
        hoverlabel: { font: { size: 12, color: ink }, bgcolor: panel, bordercolor: rule, align: "left" },
        legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { size: 12 }, tracegroupgap: 0 },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
        shapedefaults: { line: { color: ink } },
        xaxis: axis,
        yaxis: axis,
      },
    };
  };

  const draw = ({ id, data, layout }, look) => Plotly.newPlot(id, data, { ...layout, template: look }, config);

  const say = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    root.dataset.drawn = isDark() ? "dark" : "light";
  };

  const retheme = async () => {
    const look = template();
    await Promise.all(figures.map(({ id }) => Plotly.relayout(id, { template: look })));
    say();
  };

  const show = (run, visible) =>
    Promise.all(
      figures.map(({ id, data }) => {
        const own = data.flatMap((trace, i) => (trace.meta && trace.meta.run === run ? [i] : []));
        return own.length ? Plotly.restyle(id, { visible }, own) : null;
      }),
    );

  // For pages that load charts later or again; hidden Runs stay hidden in these.
  window.laminabench = {
    colour,
    draw: async (more) => {
      const drawn = new Set(more.map(({ id }) => id));
      figures.splice(0, figures.length, ...figures.filter(({ id }) => !drawn.has(id) && document.getElementById(id)), ...more);
      const look = template();
      await Promise.all(more.map((figure) => draw(figure, look)));
      const hidden = document.querySelectorAll("#keys button[aria-pressed=false]");
      await Promise.all([...hidden].map((key) => show(Number(key.dataset.run), false)));
    },
  };

  const button = document.getElementById("theme");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    retheme();
  });
  button.hidden = false;
  system.addEventListener("change", retheme);

  const keys = document.getElementById("keys");
  for (const key of keys ? keys.querySelectorAll("button") : []) {
    key.addEventListener("click", async () => {
      const visible = key.getAttribute("aria-pressed") === "false";
      key.setAttribute("aria-pressed", String(visible));
      await show(Number(key.dataset.run), visible);
    });
  }
  if (keys) keys.hidden = keys.childElementCount < 2;

  root.classList.add("drawn");
  const look = template();
  Promise.all(figures.map((figure) => draw(figure, look))).then(say);
})();
