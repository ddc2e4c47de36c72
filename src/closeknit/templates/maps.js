  // Maps: another objective, some classes only, the text of a point.
  const tip = document.getElementById("tip");
  const maps = JSON.parse(document.getElementById("maps").textContent);
  let lit = [];
  const hide = () => { tip.hidden = true; lit.forEach((p) => p.classList.remove("at")); lit = []; };
  const line = (tag, text) => { const el = document.createElement(tag); el.textContent = text; return el; };
  const show = (point) => {
    hide();
    const view = point.closest(".choice"), { labels, points } = maps[view.id], [text, e, p] = points[point.dataset.i];
    tip.replaceChildren(line("b", text || "(text not stored)"), line("span", `expected ${labels[e]}`),
      line("span", p === e ? "predicted the same" : `predicted ${labels[p]}`));
    lit = all(`[data-i="${point.dataset.i}"]`, view);
    lit.forEach((p) => p.classList.add("at"));
    tip.hidden = false;
    const at = point.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const x = Math.min(Math.max(12, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 12);
    const y = at.top - own.height - 10 < 60 ? at.bottom + 10 : at.top - own.height - 10;
    tip.style.left = `${x}px`;
    tip.style.top = `${y}px`;
  };
  all("svg.map").forEach((map) => {
    map.onpointerover = (e) => { if (e.target.dataset.i) show(e.target); else hide(); };
    map.onclick = (e) => { if (e.target.dataset.i) show(e.target); };
    map.onpointerleave = (e) => { if (e.pointerType === "mouse") hide(); };
    map.onblur = hide;
    map.onkeydown = (e) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
      if (e.key === "Escape") hide();
      if (!step) return;
      e.preventDefault();
      const points = all(".p:not(.dim)", map), at = points.indexOf(map.querySelector(".at"));
      show(points[(at + step + points.length) % points.length]);
    };
  });
  addEventListener("scroll", hide, { passive: true });
  all("[data-show]").forEach((button) => {
    button.onclick = () => {
      press(button);
      all(".choice", button.closest(".panel")).forEach((view) => view.classList.toggle("on", view.id === button.dataset.show));
    };
  });
  all(".classes").forEach((legend) => {
    legend.onclick = (e) => {
      const button = e.target.closest("button");
      if (!button) return;
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      const kept = new Set(all('[aria-pressed="true"]', legend).map((b) => b.dataset.k));
      all("[data-i]", legend.closest(".choice")).forEach((p) => p.classList.toggle("dim", kept.size > 0 && !kept.has(p.dataset.k)));
    };
  });
