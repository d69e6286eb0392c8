// What the theme leaves without a name, or out of the keyboard's reach: its search, and wide tables.
document$.subscribe(() =>
  requestAnimationFrame(() => {
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
    document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap, place) => {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "region");
      wrap.setAttribute("aria-label", `Table ${place + 1}`);
    });
  }),
);
