// Buttons that copy: `data-copy="link"` this page's address, any other value the text of the element of that id.
"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = !navigator.clipboard;
  const words = button.textContent;
  button.addEventListener("click", async () => {
    const what = button.dataset.copy;
    await navigator.clipboard.writeText(what === "link" ? location.href : document.getElementById(what).textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), 1500);
  });
}
