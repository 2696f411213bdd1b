// Puts the page together, and shows the values of all lines below the pointer.
const report = JSON.parse(document.getElementById("report").textContent);
document.title = `Training report: ${report.runs.map((run) => run.name).join(", ")}`;
// Only `html` makes HTML, and it escapes each text of the report.
document.getElementById("page").innerHTML = render(report).text;

const tip = document.getElementById("tip");
for (const svg of document.querySelectorAll("svg[data-x-name]")) {
  const { left, right, low, high, xName } = svg.dataset;
  const numbers = (text) => (text ? text.split(" ").map(Number) : []);
  const lines = [...svg.querySelectorAll("path.line")].map((path) => ({
    name: path.dataset.name,
    x: numbers(path.dataset.x),
    y: numbers(path.dataset.y),
  }));
  const cursor = svg.querySelector(".cursor");
  const nearest = (xs, x) => {
    let [first, last] = [0, xs.length - 1];
    while (last - first > 1) {
      const middle = (first + last) >> 1;
      if (xs[middle] < x) first = middle;
      else last = middle;
    }
    return x - xs[first] < xs[last] - x ? first : last;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const share = Math.min(Math.max((at - left) / (right - left), 0), 1);
    const x = Number(low) + share * (high - low);
    const found = lines.filter((line) => line.x.length).map((line) => {
      const i = nearest(line.x, x);
      return { name: line.name, x: line.x[i], y: line.y[i] };
    });
    if (!found.length) return;
    const closest = found.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
    const place = Number(left) + ((closest.x - low) / (high - low)) * (right - left);
    cursor.setAttribute("d", `M${place} 10V250`);
    // As text, not as HTML: names come from the log.
    tip.textContent = [`${xName} ${closest.x}`, ...found.map((f) => `${f.name}: ${f.y}`)].join("\n");
    tip.hidden = false;
    const width = tip.offsetWidth;
    const beside = event.pageX + 16 + width > document.documentElement.clientWidth;
    tip.style.left = `${beside ? event.pageX - width - 16 : event.pageX + 16}px`;
    tip.style.top = `${event.pageY + 12}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cursor.removeAttribute("d");
  });
}
