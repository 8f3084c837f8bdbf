// Remembers colours, loads parts of the page, polls for changes, and handles keys.
"use strict";
(() => {
  const root = document.documentElement;
  const saved = localStorage.getItem("theme");
  if (saved) root.dataset.theme = saved;
  const remember = () => root.dataset.theme && localStorage.setItem("theme", root.dataset.theme);
  new MutationObserver(remember).observe(root, { attributeFilter: ["data-theme"] });

  const NEWS_MS = 2000;
  const fetched = async (address) => {
    const answer = await fetch(address, { headers: { accept: "application/json" } });
    if (!answer.headers.get("content-type").startsWith("application/json")) throw new Error(`${answer.status}`);
    return answer.json();
  };

  // Load a part of the page from its address into its element.
  const fill = async (element, address) => {
    element.setAttribute("aria-busy", "true");
    try {
      const { html, figures } = await fetched(address);
      element.innerHTML = html;
      watch(element);
      await window.laminabench.draw(figures);
    } catch (error) {
      element.textContent = `This part could not be loaded (${error.message}): reload the page.`;
    } finally {
      element.removeAttribute("aria-busy");
      root.dataset.filled = String(Number(root.dataset.filled || 0) + 1);
    }
  };
  // While a request is under way, only the last of later ones is sent after it: a slider makes many.
  const pending = new Map();
  const change = async (id, address) => {
    const busy = pending.has(id);
    pending.set(id, address);
    for (let shown = null; !busy && shown !== pending.get(id); ) {
      shown = pending.get(id);
      const url = new URL(shown, location.href);
      const here = new URL(url);
      url.searchParams.set("part", id);
      await fill(document.getElementById(id), url);
      history.replaceState(null, "", here);
    }
    if (!busy) pending.delete(id);
  };
  const watch = (element) => element.querySelectorAll("[data-lazy]").forEach((each) => fill(each, each.dataset.lazy));

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-part]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { part } = link.dataset;
    const words = link.textContent;
    change(part, link.href).then(() => {
      // The link was replaced: give its focus to the new one.
      const same = [...document.querySelectorAll(`#${part} a[data-part]`)].find((each) => each.textContent === words);
      if (same) same.focus();
    });
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-part]");
    if (!form || event.submitter?.hasAttribute("formaction")) return;
    event.preventDefault();
    change(form.dataset.part, `${form.action}?${new URLSearchParams(new FormData(form, event.submitter))}`);
  });

  // The selected Runs, also on other pages of the table.
  const SELECTED = "selected";
  const selected = () => new Set(JSON.parse(sessionStorage.getItem(SELECTED) || "[]"));
  const boxes = () => [...document.querySelectorAll("#selection input[name=run]")];
  const select = (change_) => {
    const keys = selected();
    change_(keys);
    sessionStorage.setItem(SELECTED, JSON.stringify([...keys]));
    tick();
  };
  const tick = () => {
    const form = document.getElementById("selection");
    if (!form) return;
    const keys = selected();
    const here = boxes();
    for (const box of here) box.checked = keys.has(box.value);
    const all = document.getElementById("all");
    all.hidden = false;
    all.checked = here.length > 0 && here.every((box) => box.checked);
    form.querySelectorAll("input[type=hidden][name=run]").forEach((each) => each.remove());
    const shown = new Set(here.map((box) => box.value));
    for (const key of keys) {
      if (shown.has(key)) continue;
      const hidden = Object.assign(document.createElement("input"), { type: "hidden", name: "run", value: key });
      form.append(hidden);
    }
    const label = form.querySelector("[data-selected]");
    label.textContent = keys.size ? `${keys.size} selected` : "select some to compare";
    for (const button of form.querySelectorAll("button[type=submit]")) button.disabled = !keys.size;
    if (keys.size && !label.nextElementSibling.dataset.clear) {
      const clear = Object.assign(document.createElement("button"), { type: "button", textContent: "Clear" });
      clear.dataset.clear = "true";
      clear.addEventListener("click", () => select((all_) => all_.clear()));
      label.after(clear);
    } else if (!keys.size && label.nextElementSibling.dataset.clear) {
      label.nextElementSibling.remove();
    }
  };
  document.addEventListener("change", ({ target }) => {
    if (target.id === "all") {
      select((keys) => boxes().forEach((box) => (target.checked ? keys.add(box.value) : keys.delete(box.value))));
    } else if (target.matches("#selection input[name=run]")) {
      select((keys) => (target.checked ? keys.add(target.value) : keys.delete(target.value)));
    }
  });

  // Runs that are added, changed or removed while the page is open.
  let version = null;
  const news = async () => {
    if (document.hidden) return;
    let latest;
    try {
      latest = await fetched("/news");
    } catch {
      return; // the explorer has ended; what is there can still be read
    }
    for (const [address, count] of Object.entries(latest.counts)) {
      const place = document.querySelector(`.places a[href="${address}"] .count`);
      if (place) place.textContent = count.toLocaleString("en");
    }
    const rows = document.querySelector("[data-live]");
    const before = version;
    version = latest.version;
    if (!rows || before === null || before === version) return;
    const known = new Set([...document.querySelectorAll("tr[data-key]")].map((row) => row.dataset.key));
    const focused = document.activeElement?.closest("tr")?.dataset.key;
    try {
      rows.innerHTML = (await fetched(rows.dataset.live)).html;
    } catch {
      version = before; // busy, or gone: the next poll requests them again
      return;
    }
    const fresh = [...rows.querySelectorAll("tr[data-key]")].filter((row) => !known.has(row.dataset.key));
    for (const row of fresh) row.classList.add("new");
    tick();
    rowOf(focused)?.querySelector("input").focus();
    const words = document.getElementById("news");
    if (words && fresh.length) words.textContent = `${fresh.length} new Run${fresh.length > 1 ? "s" : ""}`;
  };

  const rowOf = (key) => [...document.querySelectorAll("tr[data-key]")].find((row) => row.dataset.key === key);
  const step = (by) => {
    const all = [...document.querySelectorAll("tr[data-key]")];
    const at = all.indexOf(document.activeElement?.closest("tr"));
    const row = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    row?.querySelector("input").focus();
    row?.scrollIntoView({ block: "nearest" });
  };
  const press = (selector) => document.querySelector(selector)?.click();
  let prefix = "";
  const keys = {
    "/": () => {
      const box = document.getElementById("q");
      box?.focus();
      box?.select();
    },
    j: () => step(1),
    k: () => step(-1),
    x: () => document.activeElement?.closest("tr")?.querySelector("input[name=run]")?.click(),
    o: () => document.activeElement?.closest("tr")?.querySelector("a")?.click(),
    c: () => press("#selection button.main:not(:disabled)"),
    t: () => press("#theme"),
    "g r": () => location.assign("/"),
    "g l": () => location.assign("/live"),
    "?": () => {
      const shortcuts = document.getElementById("shortcuts");
      shortcuts.open = true;
      shortcuts.scrollIntoView();
      shortcuts.querySelector("summary").focus();
    },
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const does = keys[prefix + event.key];
    prefix = event.key === "g" && !does ? "g " : "";
    if (!does) return;
    event.preventDefault();
    does();
  });

  document.addEventListener("DOMContentLoaded", () => {
    tick();
    watch(document);
    news();
    setInterval(news, NEWS_MS);
  });
  document.addEventListener("visibilitychange", news);
})();
