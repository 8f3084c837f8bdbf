// Updates the page of a live replay: adds new moments to its charts, and shows the server's state.
"use strict";
(() => {
  const feed = JSON.parse(document.getElementById("feed").textContent);
  const POLL_MS = 500;
  const MOST_POINTS = 20000;
  let { seen } = feed;
  let faults = -1;

  const mark = (at) => ({
    type: "line", name: "fault", x0: at, x1: at, y0: 0, y1: 1, yref: "paper", line: { color: "#c23b22", width: 1 },
  });

  const grow = async ({ points, faults: struck }) => {
    for (const [id, ...fields] of feed.lines) {
      const chart = document.getElementById(id);
      if (points.at_s.length) {
        const x = fields.map(() => points.at_s);
        const y = fields.map((name) => points[name]);
        await Plotly.extendTraces(chart, { x, y }, fields.map((_, i) => i), MOST_POINTS);
      }
      if (struck.length !== faults) {
        const others = (chart.layout.shapes || []).filter((shape) => shape.name !== "fault");
        await Plotly.relayout(chart, { shapes: [...others, ...struck.map(mark)] });
      }
    }
    faults = struck.length;
  };

  // Unchanged elements are not replaced: focus, selections and screen readers keep their place.
  const show = (html) => {
    const state = document.getElementById("state");
    const fresh = document.createElement("div");
    fresh.innerHTML = html;
    const children = [...fresh.children];
    children.forEach((child, place) => {
      const there = state.children[place];
      if (!there) state.append(child);
      else if (!there.isEqualNode(child)) there.replaceWith(child);
    });
    while (state.children.length > children.length) state.lastElementChild.remove();
  };

  const poll = async () => {
    const query = new URLSearchParams({ seen, began: feed.began });
    let update;
    try {
      update = await (await fetch(`${feed.address}&${query}`)).json();
    } catch {
      setTimeout(poll, 4 * POLL_MS); // the explorer has ended, or is busy
      return;
    }
    if (update.reload) {
      location.reload();
      return;
    }
    if (update.figures) return; // an error's page: what was drawn stays
    show(update.html);
    if (update.faults) await grow(update);
    seen = update.seen;
    document.documentElement.dataset.seen = seen;
    if (update.over) document.documentElement.dataset.over = "true";
    else setTimeout(poll, POLL_MS);
  };
  poll();
})();
