"use strict";
// Data arrives as script files, since file:// forbids fetch. Every text goes through textContent.
const LEVAL = {
  waiting: {},
  loaded: {},
  receive(name, value) {
    LEVAL.loaded[name] = value;
    if (name === "leaderboard") { LEVAL.board = value; start(); }
    (LEVAL.waiting[name] || []).forEach((done) => done(value));
    delete LEVAL.waiting[name];
  },
  load(name) {
    if (name in LEVAL.loaded) return Promise.resolve(LEVAL.loaded[name]);
    return new Promise((done, failed) => {
      if (LEVAL.waiting[name]) { LEVAL.waiting[name].push(done); return; }
      LEVAL.waiting[name] = [done];
      const script = document.createElement("script");
      script.src = "data/" + name + ".js";
      script.onerror = () => { delete LEVAL.waiting[name]; failed(new Error("data/" + name + ".js is missing")); };
      document.body.append(script);
    });
  },
};
const BATCH = 250;
const view = { sort: null, down: true, compare: null, turn: 0 };
const by = (id) => document.getElementById(id);

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
function lengthLabel(n) {
  if (n === null || n === undefined) return "–";
  return n % 1024 === 0 ? n / 1024 + "K" : n.toLocaleString("en");
}
function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, label]) => {
    const option = make("option", "", label);
    option.value = value;
    return option;
  }));
  if (chosen !== undefined) select.value = chosen;
}
const unique = (values) => [...new Set(values)];
// a block's title is the model, then the settings that set its runs apart
function named(block) {
  const [model, ...settings] = block.split(" · ");
  return [model, settings.join(" · ")];
}

function start() {
  const board = LEVAL.board;
  board.rows.forEach((row, at) => { row.at = at; row.text = (row.method + " " + row.block).toLowerCase(); });
  board.columns.forEach((column, at) => { column.at = at; });
  const blocks = unique(board.rows.map((r) => r.block));
  fill(by("model"), [["", "all"], ...blocks.map((b) => [b, b])]);
  const lengths = unique(board.rows.map((r) => r.ctx)).sort((a, b) => a - b);
  fill(by("context"), [["", "all"], ...lengths.map((n) => [String(n), lengthLabel(n)])]);
  const kinds = [["", "all"]];
  if (board.columns.some((c) => c.nats) && board.columns.some((c) => !c.nats)) kinds.push(["scores", "scores"], ["perplexity", "perplexity and loss"]);
  board.columns.forEach((c) => kinds.push([String(c.at), c.label]));
  fill(by("tasks"), kinds, "");
  view.usual = Object.values(board.baselines).find((name) => name in board.compare) || "";
  fill(by("baseline"), [["", "(no comparison)"], ...Object.keys(board.compare).map((m) => [m, m])], view.usual);
  // what leaves no choice takes no room
  const choices = { model: blocks.length, context: lengths.length, tasks: board.columns.length, baseline: Object.keys(board.compare).length, show: Object.keys(board.compare).length, search: board.rows.length - 8 };
  for (const [id, n] of Object.entries(choices)) by(id).parentElement.hidden = n < 2 && !(id === "show" && n);
  board.notes.forEach((note) => by("notes").append(make("li", "", note)));
  for (const id of ["model", "context", "tasks", "show"]) by(id).addEventListener("change", draw);
  if (by("published")) by("published").addEventListener("change", draw);
  by("search").addEventListener("input", draw);
  by("baseline").addEventListener("change", loadBaseline);
  by("controls").addEventListener("submit", (event) => event.preventDefault());
  by("link").addEventListener("click", copyLink);
  by("view-csv").addEventListener("click", downloadView);
  by("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
  startCompare();
  startCharts();
  restore();
  addEventListener("hashchange", restore);
}

// the address says what is shown, so that a link to it shows the same
const KEPT = ["search", "model", "context", "tasks", "baseline", "show"];
function address() {
  const says = new URLSearchParams();
  for (const id of KEPT) if (by(id).value !== (id === "baseline" ? view.usual : id === "show" ? "score" : "")) says.set(id, by(id).value);
  if (by("published") && !by("published").checked) says.set("published", "0");
  if (view.sort !== null) says.set("sort", (view.down ? "-" : "") + view.sort);
  if (!by("detail").hidden && pair.row) {
    says.set("number", placeOf(pair.row, pair.column));
    if (pair.other) says.set("against", placeOf(pair.other, pair.column));
    if (!by("compare").hidden) says.set("which", by("which").value);
    if (pair.key) says.set("key", pair.key);
  }
  return "#" + says;
}
function placeOf(row, column) {
  return [LEVAL.board.runs[row.cells[column.at].run].Run, column.label, row.ctx].join("|");
}
function rowAt(place) {
  for (const row of LEVAL.board.rows) for (const column of LEVAL.board.columns) {
    const cell = row.cells[column.at];
    if (cell && cell.run !== undefined && cell.v !== undefined && placeOf(row, column) === place) return [row, column];
  }
  return null;
}
async function restore() {
  if (location.hash === view.hash) return;
  const says = new URLSearchParams(location.hash.slice(1));
  for (const id of KEPT) {
    const value = says.get(id) ?? (id === "baseline" ? view.usual : id === "show" ? "score" : "");
    by(id).value = value;
    if (by(id).value !== value) by(id).value = id === "baseline" ? view.usual : "";
  }
  if (by("published")) by("published").checked = says.get("published") !== "0";
  const sort = says.get("sort");
  view.sort = sort === null ? null : /^-?\d+$/.test(sort) ? Math.abs(Number(sort)) : sort.replace("-", "");
  view.down = sort === null || sort.startsWith("-");
  await loadBaseline();
  const found = says.get("number") && rowAt(says.get("number"));
  if (found) {
    const other = says.get("against") && rowAt(says.get("against"));
    const key = ["own", "referred"].find((name) => name === says.get("key"));
    await openDetail(...found, { other: other ? other[0] : null, which: says.get("which"), key });
  }
}
function remember() {
  view.hash = address();
  if (view.hash === "#") view.hash = "";
  if (location.hash !== view.hash) history.replaceState(null, "", view.hash || location.pathname + location.search);
}
async function copyLink() {
  remember();
  try { await navigator.clipboard.writeText(location.href); by("link").textContent = "Copied"; }
  catch { by("link").textContent = "The address bar has it"; }
  setTimeout(() => { by("link").textContent = "Copy a link to this view"; }, 2000);
}
function downloadView() {
  const columns = columnsShown(), rows = rowsShown(columns);
  const field = (value) => { const text = String(value ?? ""); return /^[=+@-]/.test(text) && isNaN(text) ? `"'${text.replaceAll('"', '""')}"` : `"${text.replaceAll('"', '""')}"`; };
  const head = ["model and setting", "method", "context", ...columns.flatMap((c) => [c.label, c.label + " low", c.label + " high", c.label + " against " + view.baseline])];
  const lines = rows.map((row) => [row.block, row.method, row.ctx, ...columns.flatMap((c) => {
    const cell = row.cells[c.at] || {}, found = comparisonOf(row, c);
    return [cell.v, cell.lo, cell.hi, found && found[0]];
  })]);
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([[head, ...lines].map((line) => line.map(field).join(",")).join("\n") + "\n"], { type: "text/csv" }));
  link.download = "view.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function loadBaseline() {
  const name = by("baseline").value;
  view.compare = name ? await LEVAL.load(LEVAL.board.compare[name]) : null;
  view.baseline = name;
  draw();
}

function columnsShown() {
  const chosen = by("tasks").value;
  const answers = (c) => LEVAL.board.reach.length > 0 && / loss$/.test(c.label);  // what the answer rests on comes first
  return [...LEVAL.board.columns].sort((a, b) => answers(b) - answers(a)).filter((c) =>
    chosen === "" || (chosen === "scores" ? !c.nats : chosen === "perplexity" ? c.nats : String(c.at) === chosen));
}
function comparisonOf(row, column) {
  const cell = row.cells[column.at];
  return view.compare && cell && cell.run !== undefined ? view.compare[cell.run + " " + column.label + " " + row.ctx] : undefined;
}
// what a column sorts by; undefined goes last
function sortValue(row, key) {
  if (key === "method") return row.method.toLowerCase();
  if (key === "ctx") return row.ctx === null ? undefined : row.ctx;
  if (key === "avg") return row.avg === null ? undefined : row.avg;
  if (key in SHARES) return share(row, key);
  if (by("show").value === "difference") {
    const found = comparisonOf(row, LEVAL.board.columns[key]);
    return found ? found[0] : undefined;
  }
  return row.cells[key] && row.cells[key].v;
}
// As the tables round: of two that are equally near, the one whose last digit is even.
function fixed(value, digits) {
  const times = 10 ** digits, below = Math.floor(value * times);
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && value * times - below === 0.5;
  return tie && below % 2 === 0 ? (below / times).toFixed(digits) : tie ? ((below + 1) / times).toFixed(digits) : value.toFixed(digits);
}
const SHARES = { cut: "Cut %", un: "Unparsed %", lim: "At limit %", open: "Thinking cut %" };
function share(row, key) {
  let top = 0, n = 0;
  for (const cell of Object.values(row.cells)) if (cell[key] !== undefined) { top += cell[key] * cell.n; n += cell.n; }
  return n ? top / n : undefined;
}
function rowsShown(columns) {
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const model = by("model").value, context = by("context").value;
  const published = !by("published") || by("published").checked;
  const rows = LEVAL.board.rows.filter((row) =>
    (model === "" || row.block === model) && (context === "" || String(row.ctx) === context) &&
    (published || !row.published) && words.every((word) => row.text.includes(word)) &&
    columns.some((c) => row.cells[c.at]));
  if (view.sort === null) return rows;
  const keyed = rows.map((row) => [sortValue(row, view.sort), row]);
  const way = view.down ? -1 : 1;
  keyed.sort(([a, x], [b, y]) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined) || x.at - y.at;
    return (a < b ? -1 : a > b ? 1 : 0) * way || x.at - y.at;
  });
  return keyed.map(([, row]) => row);
}

function draw() {
  const rows = rowsShown(columnsShown());
  // a column in which no row shown has anything is left out
  const columns = columnsShown().filter((c) => rows.some((row) => row.cells[c.at]));
  const average = by("show").value === "score" && columns.length > 1 && by("tasks").value !== "perplexity" && rows.some((row) => row.avg !== null);
  const shares = Object.keys(SHARES).filter((key) => columns.some((c) => !c.nats) && rows.some((row) => share(row, key) !== undefined));
  const blocks = new Set(rows.map((row) => row.block)).size;
  view.flat = blocks > 1 && view.sort !== null;  // sorted across models, each row says its own
  drawHead(columns, average, shares);
  const look = [by("tasks").value, by("show").value, view.baseline, view.compare !== null, view.flat, columns.map((c) => c.at), average, shares].join("\n");
  if (look !== view.look) { view.look = look; view.drawn = new Map(); }
  const lines = [];
  rows.forEach((row, at) => {
    if (blocks > 1 && !view.flat && (at === 0 || rows[at - 1].block !== row.block)) lines.push({ block: row.block, head: true });
    lines.push(row);
  });
  show(lines, (line) => (line.head ? drawBlock(line.block) : drawRow(line, columns, average, shares)));
  by("status").textContent = rows.length + (rows.length === 1 ? " row" : " rows") +
    (blocks !== 1 ? "" : " of " + rows[0].block) + (view.baseline ? "; baseline: " + view.baseline : "");
  drawAnswer();
  drawCharts();
  remember();
}
// In batches, so that the first rows stand at once; those that are made already are only moved.
function show(rows, drawn, from = 0, turn = ++view.turn) {
  if (turn !== view.turn) return;
  const body = by("board").tBodies[0], nodes = rows.slice(from, from + BATCH).map((row) => {
    const key = row.head ? row.block : row;
    if (!view.drawn.has(key)) view.drawn.set(key, drawn(row));
    return view.drawn.get(key);
  });
  if (from) body.append(...nodes); else body.replaceChildren(...nodes);
  view.whole = from + BATCH >= rows.length;
  if (!view.whole) setTimeout(show, 0, rows, drawn, from + BATCH, turn);
}
function drawHead(columns, average, shares) {
  const heads = [["method", "Method", "--method"], ["ctx", "Context", "--short"], ...columns.map((c) => [c.at, c.label, c.raw ? "--exact" : "--number", c.lower])];
  if (average) heads.splice(2 + spot(columns), 0, ["avg", "Avg.", "--short"]);
  for (const key of shares) heads.push([key, SHARES[key], "--short"]);
  const board = by("board"), widths = heads.map(([, , width]) => "var(" + width + ")");
  board.style.setProperty("--columns", widths.map((width) => "minmax(" + width + ",1fr)").join(" "));
  board.style.setProperty("--wide", "calc(" + widths.join(" + ") + ")");
  const row = part("tr", "row");
  for (const [key, label, , lower] of heads) {
    const th = part("th", "columnheader");
    const active = view.sort === key;
    th.setAttribute("aria-sort", active ? (view.down ? "descending" : "ascending") : "none");
    if (key === "method") th.className = "left";
    const button = make("button", "", label + (active ? (view.down ? " ↓" : " ↑") : ""));
    button.type = "button";
    button.dataset.key = key;
    button.title = lower ? "Sort; lower is better" : "Sort";
    button.addEventListener("click", () => {
      view.down = active ? !view.down : !(lower || key === "method" || key === "ctx");
      view.sort = key;
      draw();
      document.querySelector(`thead button[data-key="${key}"]`).focus();
    });
    th.append(button);
    row.append(th);
  }
  board.tHead.replaceChildren(row);
}
// behind the last score
function spot(columns) {
  return columns.findLastIndex((c) => !c.nats) + 1;
}
// a part of the table, with the role that its display as a grid would take from it
function part(tag, role, className, text) {
  const node = make(tag, className, text);
  node.setAttribute("role", role);
  return node;
}
function drawBlock(block) {
  const [model, settings] = named(block), tr = part("tr", "row", "block"), th = part("th", "rowheader");
  const told = make("div");
  told.append(make("strong", "", model), " ", make("small", "", settings));
  th.append(told);
  th.title = block;
  tr.append(th);
  return tr;
}
function drawRow(row, columns, average, shares) {
  const tr = part("tr", "row", row.published ? "published" : "");
  const name = part("th", "rowheader");
  row.method.split(/(?<=_)/).forEach((word, at) => name.append(...(at ? [make("wbr"), word] : [word])));
  for (const tag of ["published", "sample", "partial"]) if (row[tag]) name.append(make("span", "tag", tag));
  if (view.flat) name.append(make("small", "model", named(row.block)[0]));
  name.title = row.block;
  tr.append(name, part("td", "cell", "", lengthLabel(row.ctx)));
  const cells = columns.map((column) => drawCell(row, column));
  if (average) cells.splice(spot(columns), 0, drawAverage(row));
  tr.append(...cells);
  for (const key of shares) {
    const value = share(row, key);
    tr.append(value === undefined ? part("td", "cell", "none", "–") : drawShare(row, key, fixed(value, 1)));
  }
  return tr;
}
function drawAverage(row) {
  const td = part("td", "cell"), look = row.avgRank === 1 ? "best" : row.avgRank === 2 ? "second" : "";
  td.title = "Mean of the six tasks to the left";
  if (row.published || row.avg === null) td.append(make("span", look, row.avgText || "–"));
  else td.append(leadingTo("Avg.", row, row.avgText, look, () => openParts(row.method + " · Avg. · " + lengthLabel(row.ctx), averaged(row))));
  return td;
}
// what an average is the mean of: each task's row, column and text
function averaged(row) {
  return LEVAL.board.columns.slice(0, LEVAL.board.average).map((column) => [row, column, row.cells[column.at].t + "%"]);
}
// a share of all answers in a row, and behind it each task's
function drawShare(row, key, text) {
  const td = part("td", "cell"), name = SHARES[key];
  td.title = "Of all answers in this row";
  const parts = LEVAL.board.columns.filter((c) => row.cells[c.at] && row.cells[c.at][key] !== undefined)
    .map((c) => [row, c, fixed(row.cells[c.at][key], 1) + "% of " + row.cells[c.at].n]);
  td.append(leadingTo(name, row, text, "", () => openParts(row.method + " · " + name + " · " + lengthLabel(row.ctx), parts, { which: key })));
  return td;
}
function drawCell(row, column) {
  const td = part("td", "cell"), cell = row.cells[column.at];
  if (!cell) { td.textContent = "–"; td.className = "none"; return td; }
  if (cell.v === undefined) {
    const why = make("span", "bad", cell.s);
    why.title = cell.why;
    td.append(why);
    return td;
  }
  const found = comparisonOf(row, column), score = by("show").value === "score";
  if (!score && !found) { td.textContent = row.published ? "–" : "·"; return td; }
  const told = make("span");
  td.append(told);
  if (score) told.append(cellButton(row, column, cell.t, cell.rank === 1 ? "best" : cell.rank === 2 ? "second" : ""));
  else told.append(cellButton(row, column, signed(found[0], column), ""));
  if (found && found[4]) told.append(make("span", "mark", found[4]));
  if (!score) return td;
  // a blank between them, where a narrow cell breaks
  if (cell.e) td.append(" ", make("small", "", "± " + cell.e));
  else if (cell.exact) td.append(" ", make("small", "", "(" + fixed(cell.lo, 1) + " to " + fixed(cell.hi, 1) + ")"));
  if (cell.ends) td.append(" ", make("small", "", "[" + cell.ends.map((end) => fixed(end, 1)).join(" to ") + "]"));
  return td;
}
function signed(value, column) {
  return (value > 0 ? "+" : "") + fixed(value, column.raw ? 3 : 2);
}
function cellButton(row, column, text, className) {
  if (row.published) return make("span", className, text);
  return leadingTo(column.label, row, text, className, () => openDetail(row, column));
}
// a number that leads to what is behind it
function leadingTo(name, row, text, className, open) {
  const button = make("button", className, text);
  button.type = "button";
  button.setAttribute("aria-label", name + " " + text + ", " + row.method + ": details");
  button.addEventListener("click", open);
  return button;
}
