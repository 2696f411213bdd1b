// An axis: the range of values, and the round numbers at its ticks. The dashboard of `candelabrum watch` has the same
// axes (`watch/axis.rs`).

// The sizes of values that have a place. The difference of two values, and the step of ticks between them, must be
// numbers, too.
const [LARGEST, SMALLEST] = [1e300, 1e-290];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const range = (values) =>
  values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

class Axis {
  constructor(low, high, ticks, isLogarithmic) {
    Object.assign(this, { low, high, ticks, isLogarithmic });
  }

  // From a tick below all values to a tick above them. Only finite values count. A logarithmic axis without a positive
  // value becomes a linear one.
  static around(values, isLogarithmic, count) {
    const fits = (value) => Number.isFinite(value) && (!isLogarithmic || value > 0);
    const smallest = isLogarithmic ? SMALLEST : -LARGEST;
    const [low, high] = range(values.filter(fits).map((value) => clamp(value, smallest, LARGEST)));
    if (low > high) return Axis.linear(0, 1, count);
    return isLogarithmic ? Axis.logarithmic(low, high, count) : Axis.linear(low, high, count);
  }

  // From the smallest to the largest value, with ticks inside.
  static exactly(low, high, count) {
    [low, high] = apart(clamp(low, -LARGEST, LARGEST), clamp(high, -LARGEST, LARGEST));
    return new Axis(low, high, multiples(low, high, roundStep((high - low) / count)), false);
  }

  static linear(low, high, count) {
    [low, high] = apart(low, high);
    const step = roundStep((high - low) / count);
    [low, high] = [Math.floor(low / step) * step, Math.ceil(high / step) * step];
    return new Axis(tidy(low, step), tidy(high, step), multiples(low, high, step), false);
  }

  static logarithmic(low, high, count) {
    const decades = Math.log10(high) - Math.log10(low);
    if (decades < 1) {
      // Round numbers of the linear axis, at their logarithmic places.
      const axis = Axis.linear(low, high, count);
      const ticks = axis.ticks.filter((tick) => tick > 0);
      return new Axis(axis.low > 0 ? axis.low : low, axis.high, ticks, true);
    }
    const every = Math.ceil(decades / count);
    const first = Math.floor(Math.log10(low));
    const powers = Array.from(
      { length: Math.ceil((Math.log10(high) - first) / every) + 1 },
      (_, i) => 10 ** (first + every * i),
    );
    const between = decades < 2.5 ? powers.flatMap((power) => [2 * power, 5 * power]) : [];
    // A range of few decades need not grow to the next power: 1 to 20 would become 1 to 100.
    if (decades >= 3) [low, high] = [powers[0], powers[powers.length - 1]];
    const ticks = [...powers, ...between].sort((a, b) => a - b);
    return new Axis(low, high, ticks.filter((tick) => tick >= low && tick <= high), true);
  }

  // Where a value lies: 0 at the low end, 1 at the high end. NaN where it has no place.
  place(value) {
    const form = this.isLogarithmic ? Math.log : (value) => value;
    const place = (form(value) - form(this.low)) / (form(this.high) - form(this.low));
    return Number.isFinite(value) && Number.isFinite(place) ? place : NaN;
  }
}

// The ends of a range, or ends around a value alone.
function apart(low, high) {
  if (high - low > Math.max(SMALLEST, 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [low, high];
  const margin = Math.abs(low) > SMALLEST ? Math.abs(low) / 10 : 1;
  return [low - margin, low + margin];
}

// The next of 1, 2, 5, 10, 20, .. from this size on. The sum of rounding errors must not double a step.
function roundStep(size) {
  const power = 10 ** Math.floor(Math.log10(size));
  return [power, 2 * power, 5 * power].find((step) => step >= size * (1 - 1e-9)) ?? 10 * power;
}

// The multiples of a step in a range. No range has more than some ticks, whatever its numbers are.
function multiples(low, high, step) {
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: clamp(last - first, 0, 50) + 1 }, (_, i) => tidy((first + i) * step, step));
}

// A multiple without the error of its multiplication: 0.3 and not 0.30000000000000004.
function tidy(tick, step) {
  const decimals = clamp(-Math.floor(Math.log10(step)), 0, 15);
  return step >= 1e-12 && step < 1e15 ? Number(tick.toFixed(decimals)) : tick;
}
