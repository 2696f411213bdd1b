// Charts as SVG: lines over the steps or the time, and stacked bars over the epochs.

const [LEFT, RIGHT, TOP, WIDTH] = [62, 626, 10, 640];
const across = (share) => LEFT + share * (RIGHT - LEFT);
const up = (share, bottom) => bottom - share * (bottom - TOP);

// The classes by which the style sheet gives a run its colour. After 8 runs the colours come again, with dashes.
const classes = (run) => `c${run % 8} d${Math.min(Math.floor(run / 8), 3)}`;
const chip = (run) =>
  html`<svg class="chip" viewBox="0 0 18 8" aria-hidden="true"><path class="${classes(run)}" d="M1 4H17"/></svg>`;

// Both axes: lines or marks at their ticks, the texts of `label`, and the name of the horizontal axis.
function axes(x, y, name, bottom, label = number) {
  const high = (tick) => up(y.place(tick), bottom);
  const right = (tick) => across(x.place(tick)).toFixed(1);
  return html`<g class="grid">${y.ticks.map(
    (tick) => html`<path d="M${LEFT} ${high(tick).toFixed(1)}H${RIGHT}"/>
<text class="y" x="${LEFT - 8}" y="${(high(tick) + 4).toFixed(1)}">${number(tick)}</text>`,
  )}${x.ticks.map(
    (tick) => html`<path d="M${right(tick)} ${bottom}v5"/>
<text class="x" x="${right(tick)}" y="${bottom + 18}">${label(tick)}</text>`,
  )}<text class="x axis" x="${across(0.5)}" y="${bottom + 35}">${name}</text></g>
<path class="frame" d="M${LEFT} ${bottom}H${RIGHT}"/>`;
}

// A path through points, which is interrupted where one has no place. A point alone is a dot.
function path(points) {
  let [text, length] = ["", 0];
  for (const point of [...points, undefined]) {
    if (point) {
      text += `${length === 0 ? "M" : " "}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      length += 1;
    } else {
      if (length === 1) text += "h0";
      length = 0;
    }
  }
  return text;
}

// The values without the rare ones (a hundredth at each end) that would make all others look the same. They are sorted.
function withoutFarOnes(values) {
  const rare = Math.floor(values.length / 100);
  const [low, high] = [values[rare], values[values.length - 1 - rare]];
  const reach = 3 * (high - low);
  if (rare === 0 || reach <= 0) return values;
  return values.filter((value) => value >= low - reach && value <= high + reach);
}

// The axes of a chart of lines, and the number of values outside.
function axesOf({ lines, mayBeLogarithmic }) {
  const points = lines.flatMap((line) => [...line.points, ...line.raw]);
  const [first, last] = range(points.map(([x]) => x).filter(Number.isFinite));
  // All charts of a run begin at 0, except those of a run that was logged late.
  const begin = first >= 0 && first < 0.2 * last ? 0 : first;
  const x = first > last ? Axis.exactly(0, 1, 6) : Axis.exactly(begin, last, 6);
  const ys = points.map(([, y]) => y).filter(Number.isFinite).sort((a, b) => a - b);
  const isLogarithmic = mayBeLogarithmic && ys[0] > 0 && ys[ys.length - 1] > 50 * ys[0];
  const usual = isLogarithmic ? ys : withoutFarOnes(ys);
  return { x, y: Axis.around(usual, isLogarithmic, 5), outside: ys.length - usual.length };
}

// A chart of lines, with a number that no other chart of the page has. A line has the number and the name of its run,
// its points as [x, y] (a NaN is a gap), the values behind a smoothed line (`raw`), and vertical marks.
function lineChart(chart, id) {
  const bottom = 250;
  const { x, y, outside } = axesOf(chart);
  const place = ([right, value]) => {
    // Values far outside must not make numbers that no browser draws.
    const [a, b] = [across(x.place(right)), up(clamp(y.place(value), -10, 10), bottom)];
    return Number.isNaN(a + b) ? undefined : [a, b];
  };
  const notes = [...chart.notes];
  if (outside > 0) notes.push(`${outside} of the values lie far outside and are not shown.`);
  if (chart.lines.some((line) => line.marks.length)) {
    notes.push("Dashed vertical lines: the run went on from a checkpoint.");
  }
  return html`<figure class="chart"><figcaption>${chart.title}${
    y.isLogarithmic && html`<span class="aside"> (logarithmic axis)</span>`
  }</figcaption>${
    chart.hasLegend &&
    html`<ul class="legend">${chart.lines.map((line) => html`<li>${chip(line.run)}${line.name}</li>`)}</ul>`
  }
<svg viewBox="0 0 ${WIDTH} 290" role="img" aria-label="${chart.title}" data-x-name="${chart.xName}" data-left="${LEFT}"
 data-right="${RIGHT}" data-low="${x.low}" data-high="${x.high}">
<defs><clipPath id="clip${id}"><rect x="${LEFT - 4}" y="${TOP - 4}" width="${RIGHT - LEFT + 8}"
 height="${bottom - TOP + 8}"/></clipPath></defs>
${axes(x, y, chart.xName, bottom)}
<g clip-path="url(#clip${id})">${chart.lines.map((line) => line.marks.map(([at, text]) => {
    const right = across(x.place(at)).toFixed(1);
    return html`<path class="mark ${classes(line.run)}" d="M${right} ${TOP}V${bottom}">
<title>${line.name}: ${text}</title></path>`;
  }))}${chart.lines.map((line) =>
    line.raw.length > 0 && html`<path class="raw ${classes(line.run)}" d="${path(line.raw.map(place))}"/>`,
  )}${chart.lines.map((line) => drawnLine(line, place))}</g>
${chart.lines.map((line) => html`<path class="gap ${classes(line.run)}" d="${crosses(line, x, bottom)}"/>`)}
<path class="cursor"/></svg>
${notes.map((note) => html`<p class="note">${note}</p>`)}</figure>`;
}

// A line with its values for the cursor, and with dots if it has few points.
function drawnLine({ run, name, points }, place) {
  const finite = points.filter((point) => point.every(Number.isFinite));
  const xs = finite.map(([x]) => (Number.isInteger(x) ? x : number(x))).join(" ");
  const dots = points.length <= 60 ? points.map(place).filter((point) => point) : [];
  return html`<path class="line ${classes(run)}" d="${path(points.map(place))}"
 data-name="${name}" data-x="${xs}" data-y="${finite.map(([, y]) => number(y)).join(" ")}"/>${dots.map(
    ([x, y]) => html`<circle class="${classes(run)}" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="2.5"/>`,
  )}`;
}

// A cross at the lower edge for each gap. Crosses at the same place look like one.
function crosses({ points, raw }, x, bottom) {
  let [text, last] = ["", -Infinity];
  for (const [place, value] of raw.length ? raw : points) {
    const at = across(x.place(place));
    if (!Number.isFinite(value) && at - last >= 4) {
      text += `M${(at - 3).toFixed(1)} ${bottom - 7}l6 6m0 -6l-6 6`;
      last = at;
    }
  }
  return text;
}

// Stacked bars in one picture with a vertical axis: a bar has its name, the text below it, and its pieces as values with
// names. A piece of 0 is not drawn.
function barChart(title, bars, y, xName) {
  const bottom = 190;
  const slot = (RIGHT - LEFT) / bars.length;
  const width = clamp(slot * 0.72, 1, 48);
  // A label needs about 40 units.
  const every = Math.max(Math.ceil(40 / slot), 1);
  const places = bars.map((_, i) => i).filter((i) => i % every === 0);
  const x = new Axis(0, bars.length, places.map((i) => i + 0.5), false);
  return html`<svg viewBox="0 0 ${WIDTH} 230" role="img" aria-label="${title}">
${axes(x, y, xName, bottom, (tick) => bars[Math.floor(tick)].label)}
${bars.map((bar, i) => {
    const left = (LEFT + (i + 0.5) * slot - width / 2).toFixed(1);
    let from = 0;
    return bar.pieces.map(([name, value], piece) => {
      const [low, high] = [from, from + value].map((value) => up(y.place(value), bottom));
      from += value;
      return (
        value > 0 &&
        html`<rect class="p${piece}" x="${left}" y="${high.toFixed(1)}" width="${width.toFixed(1)}"
 height="${(low - high).toFixed(1)}"><title>${bar.name}, ${name}: ${number(value)} ms</title></rect>`
      );
    });
  })}</svg>`;
}
