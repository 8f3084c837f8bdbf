// Sliders of prices: the server computes the result, as for the form without a script.
"use strict";
(() => {
  const form = document.getElementById("prices");
  const show = () => form.requestSubmit();
  for (const row of form.querySelectorAll(".price")) {
    const [number, range] = row.querySelectorAll("input");
    const price = Number(number.dataset.price);
    const label = () => {
      const times = row.querySelector(".times");
      times.textContent = times.textContent.replace(/^\S+/, (price ? number.value / price : 1).toFixed(2));
    };
    range.hidden = !price;
    range.addEventListener("input", () => {
      const times = 2 ** Number(range.value);
      number.value = times === 1 ? price : Number((price * times).toPrecision(4));
      label();
      show();
    });
    number.addEventListener("input", () => {
      if (number.value / price > 0) range.value = Math.log2(number.value / price);
      label();
      if (form.checkValidity()) show();
    });
  }
  const reset = document.getElementById("reset");
  reset.hidden = false;
  reset.addEventListener("click", () => {
    for (const number of form.querySelectorAll("input[type=number]")) {
      number.value = number.dataset.price;
      number.dispatchEvent(new Event("input"));
    }
  });
  for (const choice of form.querySelectorAll("select, input[type=checkbox]")) choice.addEventListener("change", show);
  form.querySelector("button[type=submit]").hidden = true;
})();
