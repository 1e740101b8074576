// Sortable and filterable tables, figures, and detail panels of cases. The URL fragment stores the sorting and the filters.
"use strict";
const UNITS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const MIN_ROWS_OF_TOOLS = 12, MAX_CHOICES = 12, CHOICE_COLUMNS = ["mode", "status"];
const inWords = new Intl.Collator("en", { numeric: true });

// Return the number at the start of a text in base units, such as 0.0123 for "12.3 ms" or 1.77 for "1.77x", or NaN.
// "under 1 %" is a little less than 1. "weak 1.77x" is the ratio of a weak scaling curve.
function numberOf(text) {
  const found = /^(?:weak )?(under )?([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(ns|µs|ms|s|[kMGT]?B|x)?(?![\w=]|\.\d)(?!\s*=)/i.exec(text);
  return found ? parseFloat(found[2].replaceAll(",", "")) * (UNITS[found[3]] ?? 1) * (found[1] ? 0.99 : 1) : NaN;
}

// Return whether a cell has no value, because it is empty or says so.
const isMissing = (text) => /^(?:weak )?($|(none|not (determined|measured))\b)/.test(text);

// Return a text without non-breaking spaces and surrounding white space.
const wordsOf = (text) => text.replaceAll("\u00a0", " ").trim();

// Parse the URL fragment, #ANCHOR?q=WORDS&sort=COLUMN&down=1.
function parseFragment() {
  const [encoded, query] = location.hash.slice(1).split("?");
  let anchor = encoded;
  try { anchor = decodeURIComponent(encoded); } catch { /* not encoded: such an anchor names no element */ }
  return { anchor, query: new URLSearchParams(query ?? "") };
}

function sortRows(table, heading, down) {
  const headers = [...table.tHead.rows[0].cells], index = headers.findIndex((one) => wordsOf(one.textContent) === heading);
  if (index < 0) return;
  for (const other of headers) other.removeAttribute("aria-sort");
  headers[index].setAttribute("aria-sort", down ? "descending" : "ascending");
  closePanel();
  const rows = [...table.tBodies[0].rows].map((row) => {
    const text = wordsOf(row.cells[index].textContent);
    return { row, text, number: numberOf(text), missing: isMissing(text) };
  });
  const numeric = rows.every((one) => one.missing || !Number.isNaN(one.number));
  rows.sort((a, b) => {
    if (a.missing !== b.missing) return a.missing ? 1 : -1;  // they come last in both directions
    const order = numeric ? a.number - b.number : inWords.compare(a.text, b.text);
    return (down ? -order : order) || 0;
  });
  table.tBodies[0].append(...rows.map((one) => one.row));
}

// Hide the rows without all words of the search. A word with "=", such as devices=1, must be a whole word of the row. If the
// search is the complete label of a row, only rows with this label are visible.
function filterRows(tools) {
  const rows = tools.rows, text = wordsOf(tools.search.value), words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) tools.texts ??= rows.map((row) => wordsOf(row.textContent).toLowerCase());
  if (words.length) tools.sets ??= rows.map((row) => new Set([...row.cells].flatMap((cell) => wordsOf(cell.textContent).toLowerCase().split(/[\s,]+/))));
  const has = (at, word) => (word.includes("=") ? tools.sets[at].has(word) : tools.texts[at].includes(word));
  const exact = text !== "" && rows.some((row) => wordsOf(row.cells[0].textContent) === text);
  const chosen = tools.selects.filter(({ select }) => select.value !== "");
  let shown = 0;
  closePanel();
  rows.forEach((row, at) => {
    const fits = (exact ? wordsOf(row.cells[0].textContent) === text : words.every((word) => has(at, word)))
      && chosen.every(({ index, select }) => wordsOf(row.cells[index].textContent) === select.value);
    if (row.hidden === fits) row.hidden = !fits;
    shown += fits;
  });
  tools.count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
}

function labelledInput(words, input) {
  const label = document.createElement("label");
  label.append(words, input);
  return label;
}

const toolsOf = new Map();

function addTools(table) {
  const element = document.createElement("div"), rows = [...table.tBodies[0].rows];
  const tools = { rows, selects: [], count: document.createElement("output") };
  tools.search = Object.assign(document.createElement("input"), { type: "search", placeholder: "words, or a case" });
  element.className = "tools";
  element.append(labelledInput("filter", tools.search));
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    const values = CHOICE_COLUMNS.includes(header.textContent) ? new Set(rows.map((row) => wordsOf(row.cells[index].textContent))) : new Set();
    if (values.size < 2 || values.size > MAX_CHOICES) return;
    const select = document.createElement("select");
    select.append(new Option("any", ""), ...[...values].sort(inWords.compare).map((value) => new Option(value, value)));
    tools.selects.push({ index, name: header.textContent, select });
    element.append(labelledInput(header.textContent, select));
  });
  element.addEventListener("input", () => { filterRows(tools); storeInFragment(table); });
  element.append(tools.count);
  table.parentElement.before(element);
  toolsOf.set(table, tools);
  filterRows(tools);
}

// Store the filters and the sorting of a table in the URL fragment, without a new entry in the browser history.
function storeInFragment(table) {
  const query = new URLSearchParams(), tools = toolsOf.get(table), sorted = table.querySelector("th[aria-sort]");
  if (tools && tools.search.value) query.set("q", tools.search.value);
  for (const { name, select } of tools?.selects ?? []) if (select.value) query.set(name, select.value);
  if (sorted) query.set("sort", wordsOf(sorted.textContent));
  if (sorted?.getAttribute("aria-sort") === "descending") query.set("down", "1");
  const text = query.toString();
  history.replaceState(null, "", `#${table.dataset.anchor}${text ? `?${text}` : ""}`);
}

for (const table of document.querySelectorAll("table[data-anchor]")) {
  if (table.tBodies[0].rows.length > MIN_ROWS_OF_TOOLS) addTools(table);
  for (const header of table.tHead.rows[0].cells) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.append(...header.childNodes);
    button.addEventListener("click", () => {
      sortRows(table, wordsOf(header.textContent), header.getAttribute("aria-sort") === "ascending");
      storeInFragment(table);
    });
    header.append(button);
  }
}

// Show the target of the URL fragment: expand its section, restore filters and sorting, and open the panel of a case.
function showTarget() {
  const { anchor, query } = parseFragment(), target = anchor && document.getElementById(anchor);
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  const table = target.querySelector("table[data-anchor]"), tools = toolsOf.get(table);
  if (tools) {
    tools.search.value = query.get("q") ?? "";
    for (const { name, select } of tools.selects) select.value = query.get(name) ?? "";
    filterRows(tools);
  }
  if (table && query.has("sort")) sortRows(table, query.get("sort"), query.has("down"));
  target.hidden = false;
  if (target.tagName === "TR") openPanel(target);
  target.scrollIntoView({ block: target.tagName === "TR" ? "center" : "start" });
}
addEventListener("hashchange", showTarget);

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});

// Figures: each panel is a Vega view, drawn without eval. A pressed legend button fades all other lines in all views.
const views = [], tip = document.getElementById("tip");
const read = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
const specs = read("specs"), panels = read("panels");

function showTip(handler, event, item, value) {
  tip.hidden = value === undefined || value === null || value === "";
  if (tip.hidden) return;
  tip.textContent = value;
  const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4))}px`;
}

const embed = (chart, spec) => vegaEmbed(chart, spec, {
  ast: true, actions: false, renderer: "svg", config: specs.config, tooltip: showTip, defaultStyle: false,
});

function chartWidth(panel) {
  const outside = panel.closest("main").clientWidth - 32, columns = panel.parentElement.children.length > 1 && outside > 700 ? 2 : 1;
  return Math.max(Math.floor((outside - 24 * (columns - 1)) / columns), Number(panel.dataset.least));
}

async function drawFigures() {
  const opened = (figure) => Number(!figure.closest("details:not([open])"));
  const all = [...document.querySelectorAll("figure[data-figure]")].sort((a, b) => opened(b) - opened(a));
  for (const figure of all) {
    const places = figure.querySelectorAll(".panel");
    for (const [index, spec] of specs.figures[figure.dataset.figure].entries()) {
      const panel = places[index], chart = panel.querySelector(".chart");
      const { view } = await embed(chart, { ...spec, width: chartWidth(panel) });
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

// The detail panel of a case: a plot of its time samples, and a text with its stages, marks and memory.
function closePanel() {
  document.getElementById("panel")?.remove();
}

// Return the Vega-Lite specification of the samples of a case, or of two folders A (blue) and B (orange).
function samplesSpec(of, width) {
  const color = { field: "line", type: "nominal", scale: { domain: ["A", "B"], range: ["#0072b2", "#d55e00"] } };
  const x = {
    field: "number", type: "quantitative", title: "sample, process after process (cross: marked)",
    axis: { tickMinStep: 1, format: "d" }, scale: { nice: false },
  };
  const y = {
    field: "seconds", type: "quantitative", title: "time", scale: { zero: false },
    axis: { labelExpr: "format(datum.value, '~s') + 's'" },
  };
  const shape = { condition: { test: "datum.marked", value: "M-.8,-.8L.8,.8M.8,-.8L-.8,.8" }, value: "circle" };
  return {
    width, height: 200, autosize: { type: "fit-x", contains: "padding" }, data: { values: sampleRows(of) },
    encoding: { x, y, color, detail: { field: "process" } },
    layer: [
      { mark: { type: "line", strokeWidth: 1, strokeOpacity: 0.5 } },
      { mark: { type: "point", size: 24 }, encoding: { shape, tooltip: { field: "tip", type: "nominal" } } },
    ],
  };
}

function sampleRows(of) {
  const rows = of.samples.flatMap(([process, times, marked]) => times.map((seconds, at) => ({
    seconds, process, line: process.startsWith("B") ? "B" : "A", marked: marked.includes(at),
    tip: `${process}, sample ${at * of.step + 1}\n${seconds.toPrecision(4)} s${marked.includes(at) ? "\nmarked" : ""}`,
  })));
  return rows.map((row, at) => ({ ...row, number: at * of.step + 1 }));
}

function openPanel(row) {
  closePanel();
  const of = panels?.[row.id];
  if (!of) return;
  const line = document.createElement("tr"), cell = document.createElement("td"), chart = document.createElement("div");
  const facts = document.createElement("p");
  line.id = "panel";
  cell.colSpan = row.cells.length;
  facts.textContent = `${of.facts.join("; ")}.`;
  chart.className = "chart";
  const inside = document.createElement("div");
  inside.append(chart, facts);
  inside.style.width = `${row.closest(".scroll").clientWidth - 32}px`;
  cell.append(inside);
  line.append(cell);
  row.after(line);
  const width = Math.min(900, row.closest(".scroll").clientWidth - 40);
  embed(chart, samplesSpec(of, width));
}

document.addEventListener("click", (event) => {
  const row = event.target.closest("tbody th a")?.closest("tr");
  if (row && `#${row.id}` === location.hash) document.getElementById("panel") ? closePanel() : openPanel(row);
});
showTarget();
if (specs) drawFigures();
