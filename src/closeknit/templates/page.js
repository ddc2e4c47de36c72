"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.documentElement;

  const theme = document.getElementById("theme");
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (wish.matches ? "dark" : "light")) === "dark";
  const say = () => { theme.lastElementChild.textContent = dark() ? "Light" : "Dark"; };
  theme.onclick = () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("closeknit-theme", root.dataset.theme); } catch (e) { /* a page from a file may not remember */ }
    say();
  };
  wish.onchange = say;
  say();

  // A data set chosen in one section is chosen in all that have it.
  const choose = (id) => all(".tabs").forEach((tabs) => {
    if (!tabs.querySelector(`[data-cell="${id}"]`)) return;
    all("button", tabs).forEach((tab) => {
      const on = tab.dataset.cell === id;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
    });
    all(".panel", tabs.closest("section")).forEach((panel) => panel.classList.toggle("on", panel.dataset.cell === id));
  });
  const keep = (element, act) => { // what is above may grow: the clicked button stays under the pointer
    const before = element.getBoundingClientRect().top;
    act();
    scrollBy({ top: element.getBoundingClientRect().top - before, behavior: "instant" });
  };
  all(".tabs").forEach((tabs) => {
    tabs.onclick = (e) => { const tab = e.target.closest("button"); if (tab) keep(tab, () => choose(tab.dataset.cell)); };
    tabs.onkeydown = (e) => {
      const list = all("button", tabs), at = list.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: list.length - 1 }[e.key];
      if (at < 0 || to === undefined) return;
      e.preventDefault();
      const tab = list[(to + list.length) % list.length];
      keep(tab, () => choose(tab.dataset.cell));
      tab.focus({ preventScroll: true });
    };
  });
  const press = (button) => all("button", button.parentElement).forEach((b) => b.setAttribute("aria-pressed", b === button));

  {% if maps is defined %}
  {% include "maps.js" +%}

  {% endif %}
  // Mistakes: by objective and by what they say.
  all(".find").forEach((find) => {
    const rows = all("tbody tr", find.nextElementSibling), count = find.querySelector(".count"), words = find.querySelector("input");
    const apply = () => {
      const who = find.querySelector('[data-filter][aria-pressed="true"]')?.dataset.filter || "";
      const asked = words.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row) => {
        row.hidden = (who && row.dataset.objective !== who) || (asked && !row.textContent.toLowerCase().includes(asked));
        shown += !row.hidden;
      });
      count.textContent = shown === rows.length ? `${shown} mistakes` : `${shown} of ${rows.length} mistakes`;
    };
    words.oninput = apply;
    all("[data-filter]", find).forEach((button) => { button.onclick = () => { press(button); apply(); }; });
  });

  // Where one is on the page.
  const links = new Map(all(".top nav a").map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    links.forEach((a, id) => a.classList.toggle("here", id === entry.target.id));
    const here = links.get(entry.target.id);
    if (here) here.parentElement.scrollTo({ left: here.offsetLeft - here.parentElement.offsetLeft - 60 });
  }), { rootMargin: "-20% 0px -70% 0px" });
  all("main > section").forEach((section) => seen.observe(section));

  let opened = [];
  addEventListener("beforeprint", () => { opened = all("details:not([open])"); opened.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
})();
