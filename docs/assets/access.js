// What the theme leaves out for those who use a keyboard or a screen reader: a name of the search, and tables that scroll.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
const reachable = () => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) each.tabIndex = 0;
};
new MutationObserver(reachable).observe(document.body, {childList: true, subtree: true});
reachable();
