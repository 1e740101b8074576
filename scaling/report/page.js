// Tables that sort and filter, figures, and the panels of single cases; what is shown is kept in the address of the page.
"use strict";
const UNITS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1 };
const LEAST_ROWS = 12, MOST_CHOICES = 12, CHOSEN = ["mode", "status", "kind", "workload"];
const inWords = new Intl.Collator("en", { numeric: true });

// A number with its unit where a text begins with one, such as 12.3 ms, 1,024 or 1.77x; else nothing.
function numberOf(text) {
  const found = /^([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(ns|µs|ms|s)?(?![\w=])(?!\s*=)|^([-+]?[\d,]*\.?\d+)x/i.exec(text);
  return found ? parseFloat((found[1] ?? found[3]).replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : NaN;
}

const wordsOf = (text) => text.replaceAll("\u00a0", " ").trim();

// The address is #ANCHOR?q=WORDS&sort=COLUMN&down=1.
function address() {
  const [anchor, query] = decodeURI(location.hash.slice(1)).split("?");
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

// A word such as devices=1 must be a whole word of a row; any other may stand anywhere. A whole label finds its own row alone.
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

function labelled(words, input) {
  const label = document.createElement("label");
  label.append(words, input);
  return label;
}

const toolsOf = new Map();

function addTools(table) {
  const element = document.createElement("div"), rows = [...table.tBodies[0].rows];
  const tools = { table, rows, selects: [], count: document.createElement("output") };
  tools.search = Object.assign(document.createElement("input"), { type: "search", placeholder: "words, or a case" });
  element.className = "tools";
  element.append(labelled("filter", tools.search));
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    const values = CHOSEN.includes(header.textContent) ? new Set(rows.map((row) => wordsOf(row.cells[index].textContent))) : new Set();
    if (values.size < 2 || values.size > MOST_CHOICES) return;
    const select = document.createElement("select");
    select.append(new Option("any", ""), ...[...values].sort(inWords.compare).map((value) => new Option(value, value)));
    tools.selects.push({ index, name: header.textContent, select });
    element.append(labelled(header.textContent, select));
  });
  element.addEventListener("input", () => { filterRows(tools); remember(table); });
  element.append(tools.count);
  table.parentElement.before(element);
  toolsOf.set(table, tools);
  filterRows(tools);
}

// Write what is filtered and sorted into the address, without a step in the history.
function remember(table) {
  const query = new URLSearchParams(), tools = toolsOf.get(table), sorted = table.querySelector("th[aria-sort]");
  if (tools && tools.search.value) query.set("q", tools.search.value);
  for (const { name, select } of tools?.selects ?? []) if (select.value) query.set(name, select.value);
  if (sorted) query.set("sort", wordsOf(sorted.textContent));
  if (sorted?.getAttribute("aria-sort") === "descending") query.set("down", "1");
  const text = query.toString();
  history.replaceState(null, "", `#${table.dataset.anchor}${text ? `?${text}` : ""}`);
}

for (const table of document.querySelectorAll("table[data-anchor]")) {
  if (table.tBodies[0].rows.length > LEAST_ROWS) addTools(table);
  for (const header of table.tHead.rows[0].cells) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.append(...header.childNodes);
    button.addEventListener("click", () => {
      sortRows(table, wordsOf(header.textContent), header.getAttribute("aria-sort") === "ascending");
      remember(table);
    });
    header.append(button);
  }
}

// What is folded is unfolded where somebody is sent to it; the row of a case opens its panel.
function follow() {
  const { anchor, query } = address(), target = anchor && document.getElementById(anchor);
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
addEventListener("hashchange", follow);

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
      const datasets = Object.fromEntries(spec.layer.map(({ data }) => [data.name, specs.datasets[data.name]]));
      const panel = places[index], chart = panel.querySelector(".chart");
      const { view } = await embed(chart, { ...spec, datasets, width: chartWidth(panel) });
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

// The panel of a case: its samples one after the other, and its stages, marks and memory in words.
function closePanel() {
  document.getElementById("panel")?.remove();
}

function sampleRows(of) {
  let number = 0;
  return of.samples.flatMap(([process, seconds, marked]) => seconds.map((value, at) => ({
    number: ++number, seconds: value, process, line: process.startsWith("B") ? "B" : "A", marked: marked.includes(at),
    tip: `${process}, sample ${at + 1}\n${value.toPrecision(4)} s${marked.includes(at) ? "\nmarked" : ""}`,
  })));
}

function openPanel(row) {
  closePanel();
  const of = panels?.cases[row.id];
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
  embed(chart, { ...panels.spec, width, autosize: { type: "fit-x", contains: "padding" }, data: { values: sampleRows(of) } });
}

document.addEventListener("click", (event) => {
  const row = event.target.closest("tbody th a")?.closest("tr");
  if (row && `#${row.id}` === location.hash) document.getElementById("panel") ? closePanel() : openPanel(row);
});
follow();
if (specs) drawFigures();
