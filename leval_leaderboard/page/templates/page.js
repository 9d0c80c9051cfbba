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

function start() {
  const board = LEVAL.board;
  board.rows.forEach((row, at) => { row.at = at; row.text = (row.method + " " + row.block).toLowerCase(); });
  fill(by("model"), [["", "all"], ...unique(board.rows.map((r) => r.block)).map((b) => [b, b])]);
  const lengths = unique(board.rows.map((r) => r.ctx)).sort((a, b) => a - b);
  fill(by("context"), [["", "all"], ...lengths.map((n) => [String(n), lengthLabel(n)])]);
  const kinds = [["", "all"]];
  if (board.columns.some((c) => !c.nats)) kinds.push(["scores", "scores"]);
  if (board.columns.some((c) => c.nats)) kinds.push(["perplexity", "perplexity"]);
  board.columns.forEach((c, at) => kinds.push([String(at), c.label]));
  fill(by("tasks"), kinds, kinds.some((k) => k[0] === "scores") ? "scores" : "");
  const usual = Object.values(board.baselines).find((name) => name in board.compare);
  fill(by("baseline"), [["", "(no comparison)"], ...Object.keys(board.compare).map((m) => [m, m])], usual || "");
  board.notes.forEach((note) => by("notes").append(make("li", "", note)));
  for (const id of ["model", "context", "tasks", "show"]) by(id).addEventListener("change", draw);
  if (by("published")) by("published").addEventListener("change", draw);
  by("search").addEventListener("input", draw);
  by("baseline").addEventListener("change", loadBaseline);
  by("controls").addEventListener("submit", (event) => event.preventDefault());
  by("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
  startCompare();
  draw();
  loadBaseline();
}

async function loadBaseline() {
  const name = by("baseline").value;
  view.compare = name ? await LEVAL.load(LEVAL.board.compare[name]) : null;
  view.baseline = name;
  draw();
}

function columnsShown() {
  const chosen = by("tasks").value;
  return LEVAL.board.columns.map((c, at) => ({ ...c, at })).filter((c) =>
    chosen === "" || (chosen === "scores" ? !c.nats : chosen === "perplexity" ? c.nats : String(c.at) === chosen));
}
function comparisonOf(cell, column) {
  return view.compare && cell && cell.run !== undefined ? view.compare[cell.run + " " + column.label] : undefined;
}
// what a column sorts by; undefined goes last
function sortValue(row, key) {
  if (key === "method") return row.method.toLowerCase();
  if (key === "block") return row.block.toLowerCase();
  if (key === "ctx") return row.ctx === null ? undefined : row.ctx;
  if (key === "avg") return row.avg === null ? undefined : row.avg;
  if (key === "cut" || key === "un") return share(row, key);
  const cell = row.cells[key];
  if (by("show").value === "difference") {
    const found = comparisonOf(cell, LEVAL.board.columns[key]);
    return found ? found[0] : undefined;
  }
  return cell && cell.v;
}
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
  if (view.sort !== null) {
    const keyed = rows.map((row) => [sortValue(row, view.sort), row]);
    const way = view.down ? -1 : 1;
    keyed.sort(([a, x], [b, y]) => {
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined) || x.at - y.at;
      return (a < b ? -1 : a > b ? 1 : 0) * way || x.at - y.at;
    });
    return keyed.map(([, row]) => row);
  }
  return rows;
}

function draw() {
  const columns = columnsShown(), rows = rowsShown(columns), table = by("board");
  const scores = columns.some((c) => !c.nats);
  const average = scores && LEVAL.board.average && by("tasks").value !== "" && by("show").value === "score" && columns.length > 1;
  view.models = new Set(rows.map((row) => row.block)).size > 1;
  table.classList.toggle("one-model", !view.models);
  drawHead(columns, average, scores);
  const look = [by("tasks").value, by("show").value, view.baseline, view.compare !== null].join("\n");
  if (look !== view.look) { view.look = look; view.drawn = new Map(); }
  show(rows, (row) => drawRow(row, columns, average, scores));
  by("status").textContent = rows.length + (rows.length === 1 ? " row" : " rows") +
    (view.models || !rows.length ? "" : " of " + rows[0].block) + (view.baseline ? "; baseline: " + view.baseline : "");
}
// In batches, so that the first rows stand at once; those that are made already are only moved.
function show(rows, drawn, from = 0, turn = ++view.turn) {
  if (turn !== view.turn) return;
  const body = by("board").tBodies[0], nodes = rows.slice(from, from + BATCH).map((row) => {
    if (!view.drawn.has(row)) view.drawn.set(row, drawn(row));
    return view.drawn.get(row);
  });
  if (from) body.append(...nodes); else body.replaceChildren(...nodes);
  view.whole = from + BATCH >= rows.length;
  if (!view.whole) setTimeout(show, 0, rows, drawn, from + BATCH, turn);
}
function drawHead(columns, average, scores) {
  const heads = [["method", "Method", "--method"], ...(view.models ? [["block", "Model", "--block"]] : []), ["ctx", "Context", "--short"], ...columns.map((c) => [c.at, c.label, "--number", c.lower])];
  if (average) heads.push(["avg", "Avg.", "--short"]);
  if (scores) heads.push(["cut", "Cut %", "--short"], ["un", "Unparsed %", "--short"]);
  const board = by("board"), widths = heads.map(([, , width]) => "var(" + width + ")");
  board.style.setProperty("--columns", widths.map((width) => "minmax(" + width + ",1fr)").join(" "));
  board.style.setProperty("--wide", "calc(" + widths.join(" + ") + ")");
  const row = part("tr", "row");
  for (const [key, label, , lower] of heads) {
    const th = part("th", "columnheader");
    const active = view.sort === key;
    th.setAttribute("aria-sort", active ? (view.down ? "descending" : "ascending") : "none");
    if (key === "method" || key === "block") th.className = "left";
    const button = make("button", "", label + (active ? (view.down ? " ↓" : " ↑") : ""));
    button.type = "button";
    button.dataset.key = key;
    button.title = lower ? "Sort; lower is better" : "Sort";
    button.addEventListener("click", () => {
      view.down = active ? !view.down : !(lower || key === "method" || key === "block" || key === "ctx");
      view.sort = key;
      draw();
      document.querySelector(`thead button[data-key="${key}"]`).focus();
    });
    th.append(button);
    row.append(th);
  }
  board.tHead.replaceChildren(row);
}
// a part of the table, with the role that its display as a grid would take from it
function part(tag, role, className, text) {
  const node = make(tag, className, text);
  node.setAttribute("role", role);
  return node;
}
function drawRow(row, columns, average, scores) {
  const tr = part("tr", "row", row.published ? "published" : "");
  const name = part("th", "rowheader", "", row.method);
  for (const tag of ["published", "sample", "partial"]) if (row[tag]) name.append(make("span", "tag", tag));
  tr.append(name, part("td", "cell", "model", row.block), part("td", "cell", "", lengthLabel(row.ctx)));
  for (const column of columns) tr.append(drawCell(row, column));
  if (average) {
    const td = part("td", "cell");
    const strong = row.avgRank === 1 ? "best" : row.avgRank === 2 ? "second" : "";
    td.append(make("span", strong, row.avg === null || row.avg === undefined ? "–" : row.avg.toFixed(2)));
    tr.append(td);
  }
  if (scores) for (const key of ["cut", "un"]) {
    const value = share(row, key);
    tr.append(part("td", "cell", "", value === undefined ? "–" : value.toFixed(1)));
  }
  return tr;
}
function drawCell(row, column) {
  const td = part("td", "cell"), cell = row.cells[column.at];
  if (!cell) { td.textContent = "–"; return td; }
  const digits = column.raw ? 3 : 2;
  if (cell.v === undefined) {
    const why = make("span", "bad", cell.s);
    why.title = cell.why;
    td.append(why);
    return td;
  }
  const found = comparisonOf(cell, column);
  if (by("show").value === "difference") {
    if (!found) { td.textContent = row.published ? "–" : "·"; return td; }
    td.append(cellButton(row, column, (found[0] > 0 ? "+" : "") + found[0].toFixed(digits), ""));
  } else {
    const strong = cell.rank === 1 ? "best" : cell.rank === 2 ? "second" : "";
    td.append(cellButton(row, column, cell.v.toFixed(digits), strong));
  }
  if (found && found[4]) td.append(make("span", "mark", found[4]));
  if (cell.se !== undefined && by("show").value === "score") td.append(make("small", "", " ± " + cell.se.toFixed(digits)));
  else if (cell.exact && by("show").value === "score") td.append(make("small", "", " (" + cell.lo.toFixed(1) + " to " + cell.hi.toFixed(1) + ")"));
  return td;
}
function cellButton(row, column, text, className) {
  if (row.published) return make("span", className, text);
  const button = make("button", className, text);
  button.type = "button";
  button.setAttribute("aria-label", column.label + " " + text + ", " + row.method + ": details");
  button.addEventListener("click", () => openDetail(row, column));
  return button;
}
