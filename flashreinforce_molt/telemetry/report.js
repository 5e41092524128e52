"use strict";
// Values under the pointer. The page is complete without this.
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const cursor = svg.querySelector(".cursor");
  const tip = document.createElement("div");
  tip.className = "tip";
  svg.parentNode.appendChild(tip);
  const nearest = (xs, x) => {
    let best = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  };
  const plain = (y) => (y !== 0 && Math.abs(y) < 1e-3 ? y.toExponential(2) : String(Number(y.toPrecision(4))));
  const text = (y) => (chart.unit === "fraction" ? plain(100 * y) + "%" : plain(y));
  const hide = () => { tip.style.visibility = "hidden"; cursor.style.opacity = 0; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const at = (event.clientX - box.left) / scale;
    const span = chart.high - chart.low;
    const x = chart.low + ((at - chart.left) / (chart.right - chart.left)) * span;
    const curves = chart.curves.filter((curve) => curve.x.length);
    if (!curves.length || at < chart.left - 8 || at > chart.right + 8) return hide();
    const longest = curves.reduce((a, b) => (b.x[b.x.length - 1] > a.x[a.x.length - 1] ? b : a));
    const snapped = longest.x[nearest(longest.x, x)];
    const place = chart.left + ((snapped - chart.low) / span) * (chart.right - chart.left);
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    cursor.style.opacity = 0.7;
    tip.textContent = "";
    const head = document.createElement("div");
    head.textContent = chart.name + " " + plain(snapped);
    tip.appendChild(head);
    for (const curve of curves) {
      if (snapped < curve.x[0] || snapped > curve.x[curve.x.length - 1]) continue;
      const line = document.createElement("div");
      line.textContent = curve.n + "  " + text(curve.y[nearest(curve.x, snapped)]);
      tip.appendChild(line);
    }
    const figure = svg.parentNode.getBoundingClientRect();
    const left = box.left - figure.left + place * scale;
    tip.style.left = (left + tip.offsetWidth + 14 > figure.width ? left - tip.offsetWidth - 10 : left + 10) + "px";
    tip.style.top = box.top - figure.top + 6 + "px";
    tip.style.visibility = "visible";
  });
}
