"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.documentElement;

  // The button that switches between light and dark.
  const themeButton = document.getElementById("theme");
  const systemTheme = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (systemTheme.matches ? "dark" : "light")) === "dark";
  const labelThemeButton = () => { themeButton.lastElementChild.textContent = isDark() ? "Light" : "Dark"; };
  themeButton.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("closeknit-theme", root.dataset.theme);
    } catch (error) { /* a browser may not let a local file store anything */ }
    labelThemeButton();
  };
  systemTheme.onchange = labelThemeButton;
  labelThemeButton();

  // A tab that is selected in one section is selected in all sections that have it.
  const selectTab = (id) => all(".tabs").forEach((tabs) => {
    if (!tabs.querySelector(`[data-cell="${id}"]`)) return;
    all("button", tabs).forEach((tab) => {
      const selected = tab.dataset.cell === id;
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
    });
    all(".panel", tabs.closest("section")).forEach((panel) => panel.classList.toggle("on", panel.dataset.cell === id));
  });
  // The content above may change its height: scroll so that the clicked tab stays under the pointer.
  const selectInPlace = (tab) => {
    const before = tab.getBoundingClientRect().top;
    selectTab(tab.dataset.cell);
    scrollBy({ top: tab.getBoundingClientRect().top - before, behavior: "instant" });
  };
  all(".tabs").forEach((tabs) => {
    tabs.onclick = (event) => {
      const tab = event.target.closest("button");
      if (tab) selectInPlace(tab);
    };
    tabs.onkeydown = (event) => {
      const list = all("button", tabs);
      const current = list.indexOf(document.activeElement);
      const target = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: list.length - 1 }[event.key];
      if (current < 0 || target === undefined) return;
      event.preventDefault();
      const tab = list[(target + list.length) % list.length];
      selectInPlace(tab);
      tab.focus({ preventScroll: true });
    };
  });

  // Presses one button of a group and releases the others.
  const press = (button) => all("button", button.parentElement).forEach((other) => other.setAttribute("aria-pressed", other === button));

  {% if maps is defined %}
  {% include "maps.js" +%}

  {% endif %}
  // The search and the choice of an objective above a table of mistakes.
  all(".find").forEach((bar) => {
    const rows = all("tbody tr", bar.nextElementSibling);
    const count = bar.querySelector(".count");
    const input = bar.querySelector("input");
    const filter = () => {
      const objective = bar.querySelector('[data-filter][aria-pressed="true"]')?.dataset.filter || "";
      const query = input.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row) => {
        const otherObjective = objective && row.dataset.objective !== objective;
        const noMatch = query && !row.textContent.toLowerCase().includes(query);
        row.hidden = otherObjective || noMatch;
        shown += !row.hidden;
      });
      count.textContent = shown === rows.length ? `${shown} mistakes` : `${shown} of ${rows.length} mistakes`;
    };
    input.oninput = filter;
    all("[data-filter]", bar).forEach((button) => { button.onclick = () => { press(button); filter(); }; });
  });

  // The navigation marks the section that is on screen.
  const links = new Map(all(".top nav a").map((link) => [link.hash.slice(1), link]));
  const observer = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    links.forEach((link, id) => link.classList.toggle("here", id === entry.target.id));
    const here = links.get(entry.target.id);
    if (here) here.parentElement.scrollTo({ left: here.offsetLeft - here.parentElement.offsetLeft - 60 });
  }), { rootMargin: "-20% 0px -70% 0px" });
  all("main > section").forEach((section) => observer.observe(section));

  // On paper all details are open.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
})();
