// What HTML cannot do by itself: remembered colours, parts that change without the page, keys.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;
  new MutationObserver(() => root.dataset.theme && localStorage.setItem("theme", root.dataset.theme)).observe(root, {
    attributeFilter: ["data-theme"],
  });
})();
