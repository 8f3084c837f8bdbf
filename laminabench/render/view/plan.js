// A plan at other prices, at once: what planning/reprice.py computes, operation by operation.
"use strict";
(() => {
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const form = document.getElementById("prices");
  const byId = (id) => document.getElementById(id);
  const fixed = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  const bill = (point, prices) => {
    let hour = 0;
    for (const [device, count] of point.devices) hour += count * prices[device];
    const perHour = point.tokens_per_s * 3600;
    return { usd_per_hour: hour, usd_per_million_tokens: perHour ? (hour / perHour) * 1e6 : Infinity };
  };

  // Of lists as Python compares tuples.
  const compare = (one, other) => {
    for (let i = 0; i < one.length; i++) {
      if (one[i] < other[i]) return -1;
      if (one[i] > other[i]) return 1;
    }
    return 0;
  };

  const frontAt = (points, prices, cost, speed) => {
    const all = points.map((point) => bill(point, prices));
    const slowness = (i) => (speed === "tbt_p99_ms" ? points[i].tbt_p99_ms : -points[i].tokens_per_s);
    const order = (i) => [all[i].usd_per_million_tokens, points[i].tbt_p99_ms, all[i].usd_per_hour, points[i].candidate];
    const meeting = [...points.keys()].filter((i) => points[i].meets);
    const sorted = (key) => [...meeting].sort((a, b) => compare(key(a), key(b)));
    const on = [];
    for (const i of sorted((i) => [all[i][cost], slowness(i), ...order(i)])) {
      if (!on.length || slowness(i) < slowness(on[on.length - 1])) on.push(i);
    }
    const [winner = null] = sorted(order);
    return { all, on: on.reverse(), winner, order };
  };
  window.laminabench.frontAt = frontAt;

  const numbers = [...form.querySelectorAll("input[type=number]")];
  const slider = (device) => form.querySelector(`input[type=range][data-device="${device}"]`);
  const pricesNow = () =>
    Object.fromEntries(
      numbers.map((input) => {
        const usd = input.value === "" ? NaN : Number(input.value);
        return [input.dataset.device, usd >= 0 && usd < 1e6 ? usd : plan.prices[input.dataset.device]];
      }),
    );

  const own = frontAt(plan.points, plan.prices, "usd_per_million_tokens", "tbt_p99_ms");
  const rows = new Map([...document.querySelectorAll("#candidates tbody tr")].map((row) => [Number(row.dataset.i), row]));

  const draw = (found) => {
    const chart = byId("front");
    if (!chart.data) return; // not drawn yet: it will be, as the server had it
    const some = { front: found.on, winner: found.winner === null ? [] : [found.winner] };
    const data = chart.data.map((trace) => {
      const places = some[trace.meta.role] || trace.customdata;
      return {
        ...trace,
        customdata: places,
        x: places.map((i) => plan.points[i][plan.speed]),
        y: places.map((i) => found.all[i][plan.cost]),
        text: trace.meta.role === "front" ? places.map((_, n) => String(n + 1)) : trace.text,
      };
    });
    const type = found.all.every((each) => each[plan.cost] > 0) ? "log" : "linear";
    const yaxis = { ...chart.layout.yaxis, type, autorange: true };
    Plotly.react(chart, data, { ...chart.layout, yaxis });
  };

  const fill = (found) => {
    const body = document.querySelector("#candidates tbody");
    const on = new Set(found.on);
    const rest = [...rows.keys()].filter((i) => !on.has(i));
    rest.sort((a, b) => compare(found.order(a), found.order(b)));
    for (const i of [...found.on, ...rest]) {
      const row = rows.get(i);
      row.classList.toggle("on-front", on.has(i));
      row.querySelector(".place").textContent = on.has(i) ? found.on.indexOf(i) + 1 : "";
      row.querySelector(".won").hidden = i !== found.winner;
      put(row.querySelector(".hour"), found.all[i].usd_per_hour, 2);
      put(row.querySelector(".million"), found.all[i].usd_per_million_tokens, 3);
      body.append(row);
    }
  };

  const put = (cell, value, digits) => {
    const data = cell.querySelector("data") || cell;
    data.textContent = fixed(value, digits);
    if (data !== cell) data.value = String(value);
  };

  const crown = (found) => {
    if (found.winner === null) return;
    const [point, cost] = [plan.points[found.winner], found.all[found.winner]];
    byId("winner-name").textContent = point.candidate;
    put(byId("winner-million"), cost.usd_per_million_tokens, 3);
    put(byId("winner-hour"), cost.usd_per_hour, 2);
    put(byId("winner-rate"), point.tokens_per_s, 0);
    put(byId("winner-tbt"), point.tbt_p99_ms, 1);
    const binds = rows.get(found.winner).querySelector(".binds > span");
    byId("winner-binds").replaceChildren(binds.cloneNode(true));
    const was = `${plan.points[own.winner].candidate}, $${fixed(own.all[own.winner].usd_per_million_tokens, 3)} a million tokens`;
    byId("winner-was").textContent =
      found.winner === own.winner ? "It wins at the plan's prices too." : `At the plan's prices it is ${was}.`;
  };

  // The address says what is shown, without what it shows anyway.
  const address = (prices) => {
    const url = new URL(location.href);
    for (const [device, usd] of Object.entries(prices)) {
      if (usd === plan.prices[device]) url.searchParams.delete(`price-${device}`);
      else url.searchParams.set(`price-${device}`, usd);
    }
    history.replaceState(null, "", url);
  };

  const update = () => {
    const prices = pricesNow();
    const found = frontAt(plan.points, prices, plan.cost, plan.speed);
    for (const [device, usd] of Object.entries(prices)) {
      const times = slider(device).parentElement.querySelector(".times");
      const ratio = plan.prices[device] ? usd / plan.prices[device] : 1;
      times.textContent = times.textContent.replace(/^\S+/, ratio.toFixed(2));
    }
    draw(found);
    fill(found);
    crown(found);
    address(prices);
  };

  for (const input of numbers) {
    const range = slider(input.dataset.device);
    const price = plan.prices[input.dataset.device];
    range.hidden = !price;
    range.addEventListener("input", () => {
      const times = Number(range.value) === 0 ? 1 : 2 ** Number(range.value);
      input.value = times === 1 ? price : Number((price * times).toPrecision(4));
      update();
    });
    input.addEventListener("input", () => {
      const times = Number(input.value) / price;
      if (times > 0) range.value = Math.log2(times);
      update();
    });
  }
  const reset = byId("reset");
  reset.hidden = false;
  reset.addEventListener("click", () => {
    for (const input of numbers) {
      input.value = plan.prices[input.dataset.device];
      slider(input.dataset.device).value = 0;
    }
    update();
  });
  for (const select of form.querySelectorAll("select")) select.addEventListener("change", () => form.requestSubmit());
  const every = form.querySelector("input[name=all]");
  every.addEventListener("change", () => {
    byId("candidates").classList.toggle("front-only", !every.checked);
    const url = new URL(location.href);
    if (every.checked) url.searchParams.set("all", "1");
    else url.searchParams.delete("all");
    history.replaceState(null, "", url);
  });
  form.querySelector("button[type=submit]").hidden = true;
})();
