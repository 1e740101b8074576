// Sorting and filtering of the tables, which are whole and readable without it.
"use strict";
const UNITS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1 };
const MOST_CHOICES = 12, LEAST_ROWS = 30;

// A number with its unit where a text begins with one, such as 12.3 ms, 1,024 or 1.77x; else nothing.
function numberOf(text) {
  const found = /^([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(ns|µs|ms|s)?(?![\w=])(?!\s*=)|^([-+]?[\d,]*\.?\d+)x/i.exec(text);
  return found ? parseFloat((found[1] ?? found[3]).replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : NaN;
}

const inWords = new Intl.Collator("en", { numeric: true });

function sort(table, index, header) {
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => {
    const text = row.cells[index].textContent.trim();
    return { row, text, number: numberOf(text) };
  });
  const numeric = rows.every((one) => one.text === "" || !Number.isNaN(one.number));
  rows.sort((a, b) => {
    if ((a.text === "") !== (b.text === "")) return a.text === "" ? 1 : -1;  // what is not known comes last, either way
    const order = numeric ? a.number - b.number : inWords.compare(a.text, b.text);
    return (down ? -order : order) || 0;
  });
  table.tBodies[0].append(...rows.map((one) => one.row));
}

function labelled(words, input) {
  const label = document.createElement("label");
  label.append(words, input);
  return label;
}

function choices(rows, index) {
  const values = new Set(rows.map((row) => row.cells[index].textContent.trim()));
  const fit = values.size > 1 && values.size <= MOST_CHOICES && [...values].every((value) => value.length < 40);
  return fit ? [...values].sort(inWords.compare) : [];
}

function filters(table) {
  const rows = [...table.tBodies[0].rows];
  let texts = null;
  const tools = document.createElement("div"), count = document.createElement("output"), selects = new Map();
  const search = Object.assign(document.createElement("input"), { type: "search", placeholder: "words that all stand in a row" });
  tools.className = "tools";
  tools.append(labelled("filter", search));
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    const values = table.dataset.choices === undefined ? [] : choices(rows, index);
    if (values.length === 0) return;
    const select = document.createElement("select");
    select.append(new Option("any", "\u0000"), ...values.map((value) => new Option(value || "none", value)));
    selects.set(index, select);
    tools.append(labelled(header.textContent, select));
  });
  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...selects].filter(([, select]) => select.value !== "\u0000");
    let shown = 0;
    texts ??= rows.map((row) => row.textContent.toLowerCase());
    rows.forEach((row, number) => {
      const fits = words.every((word) => texts[number].includes(word))
        && chosen.every(([index, select]) => row.cells[index].textContent.trim() === select.value);
      if (row.hidden === fits) row.hidden = !fits;
      shown += fits;
    });
    told(shown);
  }
  function told(shown) {
    count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
  }
  tools.addEventListener("input", show);
  tools.append(count);
  told(rows.length);
  table.parentElement.before(tools);
}

function buttons(table) {
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(table, index, header));
    header.append(button);
  });
}

for (const table of document.querySelectorAll("table[data-sorts]")) {
  const many = table.tBodies[0].rows.length > LEAST_ROWS;
  if (many) filters(table);
  buttons(table);
}

// What is folded is unfolded where somebody is sent to it, and on paper.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (target) {
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", unfold);
unfold();
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});

// Figures: each panel is a view of Vega, drawn without eval; a pressed entry of a legend isolates its line in all of them.
const views = [], tip = document.getElementById("tip");

function showTip(handler, event, item, value) {
  tip.hidden = value === undefined || value === null || value === "";
  if (tip.hidden) return;
  tip.textContent = value;
  const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4))}px`;
}

function chartWidth(panel) {
  const outside = panel.closest("main").clientWidth - 32, columns = panel.parentElement.children.length > 1 && outside > 700 ? 2 : 1;
  return Math.max(Math.floor((outside - 24 * (columns - 1)) / columns), Number(panel.dataset.least));
}

async function drawFigures() {
  const { config, figures } = JSON.parse(document.getElementById("specs").textContent);
  const all = [...document.querySelectorAll("figure[data-figure]")];
  const opened = (figure) => Number(!figure.closest("details:not([open])"));
  for (const figure of all.sort((a, b) => opened(b) - opened(a))) {
    const panels = figure.querySelectorAll(".panel");
    for (const [index, spec] of figures[figure.dataset.figure].entries()) {
      const panel = panels[index], chart = panel.querySelector(".chart");
      const options = { ast: true, actions: false, renderer: "svg", config, tooltip: showTip, defaultStyle: false };
      const { view } = await vegaEmbed(chart, { ...spec, width: chartWidth(panel) }, options);
      chart.style.minHeight = "";
      views.push({ view, panel });
      await new Promise((done) => setTimeout(done));
    }
  }
  document.documentElement.dataset.drawn = views.length;
}

function isolate(line) {
  for (const button of document.querySelectorAll(".legend button")) {
    button.setAttribute("aria-pressed", String(line !== "" && button.dataset.line === line));
  }
  for (const { view } of views) view.signal("isolated", line).runAsync();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".legend button");
  if (button) isolate(button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.line);
});
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    for (const { view, panel } of views) view.width(chartWidth(panel)).runAsync();
  }, 200);
});
if (document.getElementById("specs")) drawFigures();
