// The sections of the page. The report has all figures; here they become tables and charts.

// A table of rows of cells, which are whole `th` and `td`.
const table = (kind, head, rows) =>
  html`<div class="wide"><table class="${kind}">${head && html`<thead><tr>${head}</tr></thead>`}
<tbody>${rows.map((cells) => html`<tr>${cells}</tr>`)}</tbody></table></div>`;
const headsOf = (runs) => runs.map((run) => html`<th class="run">${chip(run.number)}${run.name}</th>`);
const section = (heading, ...parts) => html`<section><h2>${heading}</h2>${parts}</section>`;
const aside = (...parts) => html`<span class="aside">${parts}</span>`;

// Words in the names of metrics of which more is better.
const MORE_IS_BETTER =
  /^(accuracy|acc|f1|precision|recall|auc|bleu|map|iou|score|top1|top5|r2)$/;
const moreIsBetter = (name) =>
  name.toLowerCase().split(/[^\p{L}\p{N}]+/u).some((word) => MORE_IS_BETTER.test(word));

// What each run was and how it went, compared with the first run.
function summary(runs) {
  const rows = summaryRows(runs).filter(([, cells]) => cells.some(([text]) => text !== ""));
  return section(
    "Summary",
    runs.length > 1 && html`<p>In brackets: compared with ${runs[0].name}, as a ratio (×) or a difference.</p>`,
    table("", [html`<th></th>`, headsOf(runs)], rows.map(([name, cells, compare]) => [
      html`<th>${name}</th>`,
      cells.map(([text, value], run) => {
        const comparison = run > 0 && compare?.(value, cells[0][1]);
        return html`<td>${text}${comparison && html` ${aside("(", comparison, ")")}`}</td>`;
      }),
    ])),
  );
}

// How a value compares with that of the first run. Nothing, where one of them is no number.
const rounded = (value, digits) => number(Number(value.toPrecision(digits)));
const ratio = (value, first) => Number.isFinite(value / first) && `×${rounded(value / first, 3)}`;
function difference(value, first) {
  if (!Number.isFinite(value - first)) return false;
  return value === first ? "equal" : `${value > first ? "+" : ""}${rounded(value - first, 2)}`;
}

// Rows of a name, the cells of all runs as [text, value], and the comparison.
function summaryRows(runs) {
  const of = (done, planned) => (planned === null ? String(done) : `${done} of ${planned}`);
  const text = (name, cell) => [name, runs.map((run) => [cell(run)])];
  const figure = (name, compare, form, value) => [
    name,
    runs.map((run) => {
      const found = value(run) ?? undefined;
      return [found === undefined ? "" : form(found, run), found];
    }),
    compare,
  ];
  const names = new Set(runs.flatMap((run) => Object.keys(run.series)));
  const evaluations = [...names].filter((name) => name.startsWith("evaluation/")).sort();
  const meanOf = (name) => (run) => (run.series[`epoch/${name}`] ?? run.series[`train/${name}`])?.mean;
  const later = (list) => list.filter((value, i) => value !== list[i - 1]);
  return [
    text("state", (run) => run.state),
    text("began", (run) => (run.began === null ? "" : date(run.began))),
    figure("time, without pauses", ratio, (_, run) => run.time, (run) => run.seconds),
    text("ranks", (run) => later(run.ranks).join(", then ")),
    text("strategy", (run) =>
      later(run.epochs.flatMap((end) => end.dist_option ?? [])).slice(0, 6).join(", then ")),
    text("epochs", (run) => of(run.epochs.length, run.planned_epochs)),
    text("steps", (run) => of(run.steps, run.planned_steps)),
    figure("training loss at the end", difference, number, (run) => run.series["train/loss"]?.last_smoothed),
    ...evaluations.flatMap((series) => {
      const name = series.slice("evaluation/".length);
      const best = moreIsBetter(name) ? "highest" : "lowest";
      return [
        figure(
          `${best} ${name} of evaluations`,
          difference,
          (value, run) => `${number(value)} at step ${run.series[series][best].step}`,
          (run) => run.series[series]?.[best]?.value,
        ),
        figure(`last ${name} of evaluations`, difference, number, (run) => run.series[series]?.last),
      ];
    }),
    figure("samples per second", ratio, number, meanOf("samples_per_second")),
    figure("sent per step", ratio, bytes, meanOf("bytes_sent_per_step")),
    text("resumes", (run) =>
      `${run.resumes.length}${run.repeated_steps ? `, ${run.repeated_steps} steps trained again` : ""}`),
    text("checkpoints", ({ checkpoints: { count, time } }) => (count ? `${count}, ${time} in all` : "0")),
  ];
}

// The settings of the runs: those that differ first.
function settings(runs) {
  const ofRuns = runs.map((run) => new Map(run.settings));
  const names = [...new Set(ofRuns.flatMap((of) => [...of.keys()]))].sort();
  const rows = names.map((name) => [name, ofRuns.map((of) => of.get(name) ?? "")]);
  const isSame = ([, values]) => values.every((value) => value === values[0]);
  const [differing, same] = [rows.filter((row) => !isSame(row)), rows.filter(isSame)];
  const cells = ([name, values]) => [html`<th>${name}</th>`, values.map((value) => html`<td class="text">${value}</td>`)];
  // Two tables beside each other are shorter than a long one.
  const half = Math.max(Math.ceil(same.length / 2), 4);
  const halves = [same.slice(0, half), same.slice(half)].filter((rows) => rows.length);
  return section(
    "Settings",
    rows.length === 0 && html`<p>The log names no settings.</p>`,
    html`<div class="beside">${
      differing.length > 0 &&
      html`<div><h3>Settings that differ</h3>
${table("settings", [html`<th>setting</th>`, headsOf(runs)], differing.map(cells))}</div>`
    }${
      same.length > 0 &&
      html`<div>${runs.length > 1 && html`<h3>Settings that are the same</h3>`}<div class="beside">
${halves.map((rows) => table("settings", false, rows.map(([name, [value]]) => cells([name, [value]]))))}</div></div>`
    }</div>`,
  );
}

// What the memory of a step was for, and what each layer kept for the backward pass.
function memory(runs) {
  const measured = runs.filter((run) => run.memory);
  const row = (name, size) => [html`<th>${name}</th>`, html`<td>${size}</td>`];
  return (
    measured.length > 0 &&
    section(
      "Where the memory of a step is",
      measured.map(({ number, name, memory: { step, place, parts, totals, ranks } }) => [
        html`<h3>${chip(number)}${name}${aside(` (rank 0, step ${step}, ${place})`)}</h3>`,
        table("", false, [
          ...parts.flatMap((part) => [
            row(part.name, bytes(part.bytes)),
            ...part.layers.map(([layers, count, size]) => [
              html`<th class="aside">\u2003${layers || "after the last layer"}${count > 1 && ` × ${count}`}</th>`,
              html`<td class="aside">${bytes(size)}</td>`,
            ]),
          ]),
          ...totals.map(([name, size]) => row(name, bytes(size))),
          ...(ranks.length > 1 ? [row("peak of the process of each rank", ranks.map(bytes).join(", "))] : []),
        ]),
      ]),
    )
  );
}

// What each strategy of a run sent and what it kept back, if any epoch says so.
function strategies(runs, charts) {
  const rows = runs.flatMap((run) => {
    const names = [...new Set(run.epochs.map((end) => end.dist_option ?? "not named"))];
    return names.map((name) => {
      const ends = run.epochs.filter((end) => (end.dist_option ?? "not named") === name);
      const values = (value) => ends.map((end) => Number(end.values[value] ?? NaN));
      const figures = [
        [mean(values("bytes_sent_per_step")), bytes],
        [mean(values("bytes_received_per_step")), bytes],
        [values("residual_norm").filter(Number.isFinite).pop(), number],
      ];
      return { run, name, epochs: ends.length, figures };
    });
  });
  if (!rows.some((row) => row.figures.some(([value]) => value !== undefined))) return false;
  const heads = ["epochs", "sent per step", "received per step", "norm not sent"];
  return section(
    "What the strategies send",
    html`<p>Payload on rank 0. The norm is that of the values that error feedback keeps for later steps, at the end of \
the last epoch.</p>`,
    table(
      "",
      [html`<th>run</th><th>strategy</th>`, heads.map((head) => html`<th class="number">${head}</th>`)],
      rows.map(({ run, name, epochs, figures }) => [
        html`<th class="run">${chip(run.number)}${run.name}</th><td class="text">${name}</td><td>${epochs}</td>`,
        figures.map(([value, form]) => html`<td>${value !== undefined && form(value)}</td>`),
      ]),
    ),
    charts,
  );
}

// What happened besides numbers: notes, resumes, checkpoints, and what is odd about a log.
const events = (runs) =>
  section(
    "Notes, checkpoints and resumes",
    runs.map(({ number, name, directory, broken, entries }) => [
      html`<h3>${chip(number)}${name}</h3><p class="aside">${directory}</p>`,
      broken.map((sentence) => html`<p class="warning">${sentence}</p>`),
      entries.length === 0
        ? html`<p>None.</p>`
        : table("events", false, entries.map(([time, text]) => html`<th>${time}</th><td class="text">${text}</td>`)),
    ]),
  );

// The whole page about a report.
function render({ version, made, runs: all }) {
  const runs = all.map((run, number) => ({ ...run, number }));
  const { training, evaluation, speed, strategies: sent, others, without } = chartsOf(runs);
  let drawn = 0;
  const draw = (charts) =>
    html`<div class="charts">${charts.map((chart) => lineChart(chart, (drawn += 1)))}</div>`;
  const drawnSection = (heading, charts, ...more) => charts.length > 0 && section(heading, draw(charts), more);
  return html`<header><h1>Training report</h1>
<ul class="legend">${runs.map((run) => html`<li>${chip(run.number)}<b>${run.name}</b> ${run.state}, ${run.time}</li>`)}</ul>
</header><main>${[
    summary(runs),
    settings(runs),
    drawnSection("Training", training),
    drawnSection("Evaluation", evaluation),
    drawnSection("Throughput", speed),
    phases(runs),
    memory(runs),
    strategies(runs, draw(sent)),
    drawnSection(
      "Other values",
      others,
      without.length > 0 &&
        html`<p class="note">Without a chart, because there are so many: ${without.join(", ")}.</p>`,
    ),
    events(runs),
  ]}</main><footer>Made by candelabrum ${version} on ${date(made)}.</footer>`;
}
