// A click on the map shows the command of its point; a choice is applied at once.
"use strict";
(() => {
  const form = document.getElementById("choices");
  if (!form) return;
  form.addEventListener("change", () => form.requestSubmit());
  form.querySelector("button[type=submit]").hidden = true;

  // Every choice replaces the chart.
  const listen = () => {
    const map = document.getElementById("map");
    if (!map || !map.on || map.listens) return;
    map.listens = true;
    map.on("plotly_click", ({ points }) => {
      const row = points[0].customdata;
      if (row === null || row === undefined) return;
      location.href = `${map.closest("[data-link]").dataset.link}&point=${row}#point`;
    });
  };
  new MutationObserver(listen).observe(document.getElementById("shown"), { childList: true, subtree: true });
  listen();
})();
