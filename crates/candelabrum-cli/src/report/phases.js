// Where the time of a step goes: stacked bars over the epochs, and a table of shares.

// The phases of a step, in their order.
const PHASES = ["forward and rest", "backward", "compress", "exposed communication", "decompress", "update"];

// The milliseconds of one step by phase, one bar for each epoch that has them. More than 40 epochs become groups.
function barsOf(run) {
  let before = 0;
  const bars = run.epochs.flatMap((end) => {
    const of = (name) => {
      const value = Number(end.values[name] ?? NaN);
      return value >= 0 && value < Infinity ? value : undefined;
    };
    const known = ["backward", "compress", "exposed", "decompress", "update"].map((phase) => of(`${phase}_seconds`));
    const steps = of("steps") ?? Math.max(end.step - before, 0);
    before = end.step;
    const phases = known.map((seconds) => (1e3 * (seconds ?? 0)) / steps);
    const whole = (1e3 * (of("train_seconds") ?? Number(end.seconds))) / steps;
    const parts = [Math.max(whole - sum(phases), 0), ...phases];
    const isSound = known.some((seconds) => seconds !== undefined) && steps > 0 && parts.every(Number.isFinite);
    return isSound ? [{ first: end.epoch, last: end.epoch, parts }] : [];
  });
  const group = Math.max(Math.ceil(bars.length / 40), 1);
  const groups = bars.filter((_, i) => i % group === 0).map((_, i) => bars.slice(i * group, (i + 1) * group));
  return groups.map(meanBar);
}
const meanBar = (bars) => ({
  first: bars[0].first,
  last: bars[bars.length - 1].last,
  parts: PHASES.map((_, phase) => mean(bars.map((bar) => bar.parts[phase]))),
});

// Where the time of a step goes, if any epoch of a run says how long its phases took.
function phases(runs) {
  const withBars = runs.map((run) => ({ ...run, bars: barsOf(run) })).filter((run) => run.bars.length);
  if (!withBars.length) return false;
  const whole = (bar) => sum(bar.parts);
  const axis = Axis.around([0, ...withBars.flatMap((run) => run.bars.map(whole))], false, 4);
  const epochs = ({ first, last }) => (first === last ? `epoch ${first}` : `epochs ${first} to ${last}`);
  const means = withBars.map((run) => meanBar(run.bars));
  const rows = PHASES.map((name, phase) => [
    html`<th>${name}</th>`,
    means.map((bar) => {
      const share = (100 * bar.parts[phase]) / whole(bar);
      return html`<td>${number(bar.parts[phase])} ${aside(share.toFixed(1), "%")}</td>`;
    }),
  ]);
  return section(
    "Where the time of a step goes",
    html`<p>On rank 0, averaged over the steps of an epoch. Communication counts only where a step waited for it.</p>
<ul class="legend">${PHASES.map((name, phase) => html`<li><span class="box p${phase}"></span>${name}</li>`)}</ul>
<div class="charts">${withBars.map((run) => {
      const bars = run.bars.map((bar) => ({
        name: epochs(bar),
        label: bar.first,
        pieces: bar.parts.map((value, phase) => [PHASES[phase], value]),
      }));
      return html`<figure class="chart">
<figcaption>${chip(run.number)}${run.name}${aside(" (milliseconds per step)")}</figcaption>
${barChart(`Where the time of a step goes: ${run.name}`, bars, axis, "epoch")}</figure>`;
    })}</div>`,
    table("", [html`<th>milliseconds per step, and share</th>`, headsOf(withBars)], [
      ...rows,
      [html`<th class="total">whole step</th>`, means.map((bar) => html`<td class="total">${number(whole(bar))}</td>`)],
    ]),
  );
}
