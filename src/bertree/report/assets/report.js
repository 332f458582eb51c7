(() => {
  const box = document.createElement("div"), rule = document.createElement("div");
  box.id = "readout";
  rule.id = "rule";
  const hide = () => { box.remove(); rule.remove(); };
  const numbers = (text, between) => (text || "").split(between).filter(Boolean).map(Number);
  const pairs = (text, between) => (text || "").split(between).filter(Boolean).map((pair) => numbers(pair, ","));
  const nearest = (points, at) => points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
  const value = ([low, high, log], share) => (log ? low * (high / low) ** share : low + (high - low) * share);
  const short = (v) => v && (Math.abs(v) >= 1e7 || Math.abs(v) < 1e-3)
    ? v.toExponential(3) : v.toLocaleString("en", { maximumSignificantDigits: 4 });
  const time = (s) => s < 90 ? s.toFixed(1) + " s"
    : s < 5400 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(2) + " h";

  function when(clock, x) {
    const found = clock.findIndex((knot) => knot[0] >= x);
    const behind = found < 0 ? clock.length - 1 : Math.max(1, found);
    const [a, s] = clock[behind - 1], [b, t] = clock[behind];
    return time(Math.max(0, s + (t - s) * (x - a) / (b - a || 1)));
  }

  for (const svg of document.querySelectorAll("svg.chart")) {
    const [left, right, top, bottom] = numbers(svg.dataset.plot, " ");
    const clock = pairs(svg.dataset.clock, " "), unit = svg.dataset.unit, across = numbers(svg.dataset.x, " ");
    const curves = [...svg.querySelectorAll(".series[data-name]")].map((group) => ({
      name: group.dataset.name,
      scale: numbers(group.dataset.right ? svg.dataset.other : svg.dataset.y, " "),
      points: pairs(group.querySelector("path.line")?.getAttribute("d"), /[M ]/),
    })).filter((curve) => curve.points.length);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const area = svg.getBoundingClientRect(), zoom = area.width / svg.viewBox.baseVal.width;
      const at = (event.clientX - area.left) / zoom;
      if (at < left - 4 || at > right + 4 || !curves.length) return hide();
      const near = curves.map((curve) => nearest(curve.points, at)), place = nearest(near, at)[0];
      const x = value(across, (place - left) / (right - left));
      const head = unit === "training time" ? time(x)
        : unit + " " + Math.round(x).toLocaleString("en") + (clock.length > 1 ? " · " + when(clock, x) : "");
      const lines = curves.map((curve, i) => Math.abs(near[i][0] - place) > 12 ? ""
        : curve.name + "  " + short(value(curve.scale, (bottom - near[i][1]) / (bottom - top))));
      box.textContent = [head, ...lines.filter(Boolean)].join("\n");
      document.body.append(rule, box);
      const x0 = area.left + scrollX + place * zoom, y0 = area.top + scrollY + top * zoom;
      rule.style.cssText = `left:${x0}px;top:${y0}px;height:${(bottom - top) * zoom}px`;
      const over = x0 + 12 + box.offsetWidth > scrollX + innerWidth - 8;
      box.style.cssText = `left:${Math.max(4, over ? x0 - 12 - box.offsetWidth : x0 + 12)}px;top:${y0 + 8}px`;
    });
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
})();
