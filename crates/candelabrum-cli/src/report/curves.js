// Which charts the page has, and the lines of each: loss, evaluations, learning rate, throughput, and whatever else was
// logged.

// The title of a series' chart.
function title(series) {
  const [, kind, name] = series.match(/^([^/]*)\/(.*)$/s);
  const known = {
    "train/loss": "Training loss",
    "train/learning_rate": "Learning rate",
    "train/samples_per_second": "Samples per second",
    "epoch/samples_per_second": "Samples per second, of whole epochs",
    "train/bytes_sent_per_step": "Megabytes sent per step",
    "epoch/bytes_sent_per_step": "Megabytes sent per step",
    "epoch/residual_norm": "Norm of the values not sent yet",
  };
  const kinds = { train: "Training", evaluation: "Evaluation", epoch: "Epoch" };
  return Object.hasOwn(known, series) ? known[series] : `${kinds[kind]}: ${name}`;
}

// The unit of time in which the longest run has a handy number.
function unitOfTime(runs) {
  const longest = Math.max(...runs.map((run) => run.seconds));
  if (longest < 180) return [1, "seconds"];
  if (longest < 10_800) return [60, "minutes"];
  return longest < 259_200 ? [3600, "hours"] : [86_400, "days"];
}

// The chart of a series over the steps, or over the time.
function chart(runs, name, isOverTime) {
  const value = name.split("/").pop();
  const [unit, xName] = isOverTime ? unitOfTime(runs) : [1, "step"];
  const size = value === "bytes_sent_per_step" ? 1e6 : 1;
  const x = (step, seconds) => (isOverTime ? seconds / unit : step);
  const places = ({ step, seconds, value }) =>
    step.map((step, i) => [x(step, seconds[i]), value[i] === null ? NaN : value[i] / size]);
  const notes = [];
  const lines = runs.filter((run) => run.series[name]?.points).map((run) => {
    const { points, smoothed, count, not_finite, first_not_finite } = run.series[name];
    if (not_finite) {
      notes.push(`${run.name}: ${not_finite} of ${count} values are NaN or infinite, from step ${first_not_finite} on \
(crosses at the edge).`);
    }
    const marks = name !== "train/loss" ? [] : run.resumes.slice(0, 50).map(({ step, seconds, from }) =>
      [x(step, seconds), `resumed at step ${step} from ${from}`]);
    const line = { run: run.number, name: run.name, marks };
    if (!smoothed) return { ...line, points: places(points), raw: [] };
    return { ...line, points: places(smoothed), raw: places(points) };
  });
  if (lines.some((line) => line.raw.length)) notes.unshift("Bold: smoothed. Thin: as logged.");
  return {
    title: isOverTime ? `${title(name)} over time` : title(name),
    xName,
    // A schedule has its form on a linear axis.
    mayBeLogarithmic: !["learning_rate", "accuracy", "samples_per_second"].includes(value),
    lines,
    hasLegend: runs.length > 1,
    notes,
  };
}

// The charts by section, and the names of the series that have none.
function chartsOf(runs) {
  const all = [...new Set(runs.flatMap((run) => Object.keys(run.series)))].sort();
  const isDrawn = (name) => runs.some((run) => run.series[name]?.points);
  let rest = all.filter(isDrawn);
  const take = (isWanted) => {
    const taken = rest.filter(isWanted);
    rest = rest.filter((name) => !isWanted(name));
    return taken.map((name) => chart(runs, name));
  };
  const loss = take((name) => name === "train/loss");
  return {
    training: [
      ...loss,
      ...loss.map(() => chart(runs, "train/loss", true)),
      ...take((name) => name === "train/learning_rate"),
    ],
    evaluation: take((name) => name.startsWith("evaluation/")),
    speed: take((name) => name.endsWith("samples_per_second")),
    strategies: take((name) => ["epoch/bytes_sent_per_step", "epoch/residual_norm"].includes(name)),
    others: take(() => true),
    without: all.filter((name) => !isDrawn(name)),
  };
}
