"""The look of a report and its one script: values of the curves under the pointer."""

STYLE = """
:root{color-scheme:light dark;--ink:#1f2430;--soft:#667085;--edge:#e1e4ea;--paper:#fff;--ground:#f6f7f9;
--good:#0a7d5c;--bad:#c62f3b;--accent:#2563c9}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e8ee;--soft:#98a2b3;--edge:#2d3340;--paper:#171a21;
--ground:#0f1116;--good:#3ecf9f;--bad:#ff7b83;--accent:#6ea8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px}
h2{font-size:17px;margin:34px 0 10px}
.sub{color:var(--soft);margin:0 0 18px}
.verdict{font-size:22px;line-height:1.3;font-weight:600;margin:0 0 12px}
.state{font-size:13px;font-weight:600;padding:2px 9px;border-radius:10px;border:1px solid currentColor;
vertical-align:4px;margin-left:8px;white-space:nowrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:10px}
.tile,.card,details,.scroll{background:var(--paper);border:1px solid var(--edge);border-radius:8px}
.tile{padding:10px 12px}
.tile dt{color:var(--soft);font-size:12.5px}
.tile dd{margin:0;font-size:21px;font-weight:600;line-height:1.3;white-space:nowrap;
font-variant-numeric:tabular-nums}
.tile .more{color:var(--soft);font-size:12px;line-height:1.35}
dl{margin:0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:14px}
.card{margin:0;padding:8px;break-inside:avoid;min-width:0}
.chart{display:block;width:100%;height:auto}
.good{color:var(--good)}.bad{color:var(--bad)}.wait{color:var(--accent)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 12px;border-top:1px solid var(--edge);vertical-align:top}
thead th{border-top:0;color:var(--soft);font-weight:600;font-size:13px}
td.number,th.number{text-align:right;white-space:nowrap}
.scroll{overflow-x:auto;margin:0 0 14px}
.scroll.words td{white-space:nowrap}
.scroll.words table{width:auto;min-width:50%}
.scroll.facts table{width:auto}
.scroll.facts td:last-child{overflow-wrap:anywhere}
.sample{margin:0;padding:10px 12px;overflow-wrap:anywhere;border-bottom:1px solid var(--edge)}
.sample b{border-bottom:2px solid var(--accent)}
.sample sup,.small{color:var(--soft);font-size:12px}
details{margin:0 0 12px;padding:8px 12px}
summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;font-size:13px;line-height:1.45;margin:8px 0 0}
details .scroll{border:0;margin:8px 0 0}
#readout{position:absolute;pointer-events:none;background:var(--paper);border:1px solid var(--edge);
border-radius:6px;padding:5px 9px;font-size:12.5px;line-height:1.45;box-shadow:0 2px 8px #0003;white-space:pre;
font-variant-numeric:tabular-nums}
#rule{position:absolute;pointer-events:none;width:1px;background:var(--soft);opacity:.6}
@media (max-width:640px){main{padding:16px 10px 32px}.chart text{font-size:14px}.chart .title{font-size:17px}
.chart .key{font-size:13.5px}.chart .word{font-size:13px}.tiles{grid-template-columns:1fr 1fr}
.tile dd{font-size:19px}}
@media print{body{background:#fff;font-size:12px}main{padding:0;max-width:none}.charts{grid-template-columns:1fr 1fr}
.tiles{grid-template-columns:repeat(5,1fr)}.tile dd{font-size:15px}pre{white-space:pre-wrap}#readout,#rule{display:none}
h2{break-after:avoid}}
"""

# Reads values off the drawn curves, so that no number stands in the page twice.
SCRIPT = r"""
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
"""
