// HTML as a value: `html` escapes every text that is put into it, and only what it made itself stays HTML.
class Markup {
  constructor(text) {
    this.text = text;
  }
}
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (value) => {
  if (value instanceof Markup) return value.text;
  if (Array.isArray(value)) return value.map(escaped).join("");
  if (value === undefined || value === null || value === false) return "";
  return String(value).replace(/[&<>"]/g, (letter) => ENTITIES[letter]);
};
const html = (texts, ...values) =>
  new Markup(texts.map((text, i) => (i > 0 ? escaped(values[i - 1]) : "") + text).join(""));

// Numbers as short texts, in the forms of `candelabrum watch`: about four digits, such as 0.3412, 48210, 3.2e-5.
const withoutZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
function number(value) {
  const size = Math.abs(value);
  if (Number.isNaN(size)) return "NaN";
  if (size === Infinity) return value > 0 ? "infinite" : "-infinite";
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) {
    const [digits, exponent] = value.toExponential(3).split("e");
    return `${withoutZeros(digits)}e${Number(exponent)}`;
  }
  // Digits after the point: 3 before 1, 0 from 10000 on.
  const decimals = Math.min(Math.max(3 - Math.floor(Math.log10(size)), 0), 6);
  return withoutZeros(value.toFixed(decimals));
}
function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; Math.abs(value) >= 1000 && unit + 1 < units.length; unit += 1) value /= 1000;
  return `${number(value)} ${units[unit]}`;
}
const sum = (values) => values.reduce((sum, value) => sum + value, 0);
// The mean of the finite values, if there is one.
function mean(values) {
  const finite = values.filter(Number.isFinite);
  return finite.length ? sum(finite) / finite.length : undefined;
}
// A Unix time.
function date(time) {
  const date = new Date(time * 1000);
  if (Number.isNaN(date.getTime())) return "unknown";
  return `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
