// Runs the scripts of a page (standard input) without a browser, and prints its title and what they draw.
const page = require("fs").readFileSync(0, "utf8");
const [report, scripts] = [...page.matchAll(/<script[^>]*>(.*?)<\/script>/gs)].map((found) => found[1]);
const elements = { report: { textContent: report }, page: {}, tip: {} };
const document = { getElementById: (id) => elements[id], querySelectorAll: () => [] };
new Function("document", scripts)(document);
console.log(`${document.title}\n${elements.page.innerHTML}`);
