  // The maps of texts: the text of a point, the choice of an objective, and the choice of classes.
  const tip = document.getElementById("tip");
  const maps = JSON.parse(document.getElementById("maps").textContent);
  let highlighted = [];
  const hide = () => {
    tip.hidden = true;
    highlighted.forEach((point) => point.classList.remove("at"));
    highlighted = [];
  };
  const element = (tag, text) => {
    const created = document.createElement(tag);
    created.textContent = text;
    return created;
  };
  const show = (point) => {
    hide();
    const view = point.closest(".choice");
    const { labels, points } = maps[view.id];
    const [text, expected, predicted] = points[point.dataset.i];
    tip.replaceChildren(
      element("b", text || "(text not stored)"),
      element("span", `expected ${labels[expected]}`),
      element("span", predicted === expected ? "predicted the same class" : `predicted ${labels[predicted]}`),
    );
    highlighted = all(`[data-i="${point.dataset.i}"]`, view);
    highlighted.forEach((same) => same.classList.add("at"));
    tip.hidden = false;
    const place = point.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const x = Math.min(Math.max(12, place.left + place.width / 2 - size.width / 2), innerWidth - size.width - 12);
    const above = place.top - size.height - 10;
    tip.style.left = `${x}px`;
    tip.style.top = `${above < 60 ? place.bottom + 10 : above}px`;
  };
  all("svg.map").forEach((map) => {
    map.onpointerover = (event) => { if (event.target.dataset.i) show(event.target); else hide(); };
    map.onclick = (event) => { if (event.target.dataset.i) show(event.target); };
    map.onpointerleave = (event) => { if (event.pointerType === "mouse") hide(); };
    map.onblur = hide;
    map.onkeydown = (event) => {
      if (event.key === "Escape") hide();
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const points = all(".p:not(.dim)", map);
      const current = points.indexOf(map.querySelector(".at"));
      show(points[(current + step + points.length) % points.length]);
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
    legend.onclick = (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      const pressed = all('[aria-pressed="true"]', legend);
      const kept = new Set(pressed.map((one) => one.dataset.k));
      all("[data-i]", legend.closest(".choice")).forEach((point) => {
        point.classList.toggle("dim", kept.size > 0 && !kept.has(point.dataset.k));
      });
    };
  });
