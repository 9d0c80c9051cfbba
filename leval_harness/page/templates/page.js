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
const BATCH = 250, PAPER = 7, SHARES = { cut: "truncated", un: "no answer found", lim: "hit max tokens", open: "thinking cut" };
const TERMS = {
  cut: "Share of the questions whose document was shortened to fit the context, %",
  un: "Share of the answers in which no option or number was found, %",
  lim: "Share of the answers that the generation limit ended, %",
  open: "Share of the answers that ended before their thinking did, %",
};
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

// a method as readers write it
const titled = (method) => LEVAL.board.titles[method] || method;

function start() {
  const board = LEVAL.board;
  board.rows.forEach((row, at) => { row.at = at; row.text = (row.method + " " + titled(row.method) + " " + row.block).toLowerCase(); });
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
  fill(by("baseline"), [["", "(no comparison)"], ...Object.keys(board.compare).map((m) => [m, titled(m)])], view.usual);
  const shares = Object.keys(SHARES).filter((key) => board.rows.some((row) => Object.values(row.cells).some((cell) => cell[key] !== undefined)));
  const compared = Object.keys(board.compare).length;
  fill(by("show"), [["score", "scores"], ...(compared ? [["difference", "difference to the baseline"]] : []), ...shares.map((key) => [key, SHARES[key] + ", %"])], "score");
  // what leaves no choice takes no room
  const choices = { model: blocks.length, context: lengths.length, tasks: board.columns.length, baseline: compared, show: 1 + compared + shares.length, search: unique(board.rows.map(lineOf)).length - 3 };
  for (const [id, n] of Object.entries(choices)) by(id).parentElement.hidden = n < 2;
  for (const id of ["scores", "link", "view-csv"]) by(id).hidden = !board.rows.length;
  document.querySelector('a[href="#made-how"]').addEventListener("click", () => { by("made-how").open = true; });
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
const usual = (id) => (id === "baseline" ? view.usual : id === "show" ? "score" : "");
function address() {
  const says = new URLSearchParams();
  for (const id of KEPT) if (by(id).value !== usual(id)) says.set(id, by(id).value);
  if (by("published") && !by("published").checked) says.set("published", "0");
  if (view.sort !== null) says.set("sort", (view.down ? "-" : "") + view.sort);
  if (!by("detail").hidden && pair.row) {
    says.set("number", placeOf(pair.row, pair.column));
    if (pair.other) says.set("against", placeOf(pair.other, pair.column));
    if (!by("compare").hidden) says.set("which", by("which").value);
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
    const value = says.get(id) ?? usual(id);
    by(id).value = value;
    if (by(id).value !== value) by(id).value = usual(id);
  }
  if (by("published")) by("published").checked = says.get("published") !== "0";
  const sort = says.get("sort");
  view.sort = sort === null ? null : sort.replace(/^-/, "");
  view.down = sort === null || sort.startsWith("-");
  await loadBaseline();
  const found = says.get("number") && rowAt(says.get("number"));
  if (found) {
    const other = says.get("against") && rowAt(says.get("against"));
    await openDetail(...found, { other: other ? other[0] : null, which: says.get("which") });
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
  const lines = sorted(linesShown()), leaves = leavesOf(lines);
  const field = (value) => { const text = String(value ?? ""); return /^[=+@-]/.test(text) && isNaN(text) ? `"'${text.replaceAll('"', '""')}"` : `"${text.replaceAll('"', '""')}"`; };
  const head = ["model and setting", "method", ...leaves.flatMap((leaf) => [leaf.name, leaf.name + " low", leaf.name + " high", leaf.name + " against " + view.baseline])];
  const body = lines.map((line) => [line.block, line.method, ...leaves.flatMap((leaf) => {
    const [row, cell] = placed(line, leaf), found = row && leaf.column && comparisonOf(row, leaf.column);
    return leaf.column ? [cell && cell.v, cell && cell.lo, cell && cell.hi, found && found[0]] : [row && row.avg, "", "", ""];
  })]);
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([[head, ...body].map((line) => line.map(field).join(",")).join("\n") + "\n"], { type: "text/csv" }));
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

// the table: a line a model and method, a leaf column a task and length
const lineOf = (row) => row.block + "\n" + row.method + "\n" + Boolean(row.published);
function linesShown() {
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean), model = by("model").value;
  const published = !by("published") || by("published").checked, lines = new Map();
  for (const row of LEVAL.board.rows) {
    if ((model !== "" && row.block !== model) || (row.published && !published) || !words.every((word) => row.text.includes(word))) continue;
    const key = lineOf(row);
    if (!lines.has(key)) lines.set(key, { block: row.block, method: row.method, first: row, rows: new Map() });
    lines.get(key).rows.set(row.ctx, row);
  }
  return [...lines.values()].filter((line) => leavesOf([line]).length);
}
function leavesOf(lines) {
  const chosen = by("tasks").value, context = by("context").value, board = LEVAL.board, leaves = [];
  const lengths = unique(lines.flatMap((line) => [...line.rows.keys()])).sort((a, b) => a - b).filter((n) => context === "" || String(n) === context);
  const wanted = board.columns.filter((c) => chosen === "" || (chosen === "scores" ? !c.nats : chosen === "perplexity" ? c.nats : String(c.at) === chosen));
  wanted.sort((a, b) => b.nats - a.nats || a.at - b.at);  // what the figure shows comes first
  for (const column of wanted) {
    for (const ctx of lengths) if (lines.some((line) => line.rows.get(ctx)?.cells[column.at])) leaves.push(leaf(column, ctx));
    if (column.at === board.average - 1 && chosen !== "perplexity" && by("show").value === "score")
      for (const ctx of lengths) if (lines.some((line) => known(line.rows.get(ctx)?.avg))) leaves.push(leaf(null, ctx));
  }
  return leaves;
}
function leaf(column, ctx) {
  const label = column ? column.label : "Avg.";
  return { column, ctx, label, key: (column ? column.at : "avg") + "|" + ctx, name: label + (ctx === null ? "" : " " + lengthLabel(ctx)) };
}
function placed(line, leaf) {
  const row = line.rows.get(leaf.ctx);
  return [row, row && leaf.column ? row.cells[leaf.column.at] : undefined];
}
const known = (n) => n !== null && n !== undefined;
function comparisonOf(row, column) {
  const cell = row.cells[column.at];
  return view.compare && cell && cell.run !== undefined ? view.compare[cell.run + " " + column.label + " " + row.ctx] : undefined;
}
// what a line is sorted by; undefined goes last
function sortValue(line) {
  if (view.sort === "method") return titled(line.method).toLowerCase();
  const [column, ctx] = view.sort.split("|"), length = ctx === "null" ? null : Number(ctx), row = line.rows.get(length), show = by("show").value;
  if (!row) return undefined;
  if (column === "avg") return row.avg ?? undefined;
  const cell = row.cells[column];
  if (show === "difference") return (comparisonOf(row, LEVAL.board.columns[column]) || [])[0];
  return cell && (show in SHARES ? cell[show] : cell.v);
}
function sorted(lines) {
  if (view.sort === null) return lines;
  const way = view.down ? -1 : 1, keyed = lines.map((line, at) => [sortValue(line), at, line]);
  keyed.sort(([a, x], [b, y]) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined) || x - y;
    return (a < b ? -1 : a > b ? 1 : 0) * way || x - y;
  });
  return keyed.map(([, , line]) => line);
}
// As the tables round: of two that are equally near, the one whose last digit is even.
function fixed(value, digits) {
  const times = 10 ** digits, below = Math.floor(value * times);
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && value * times - below === 0.5;
  return tie && below % 2 === 0 ? (below / times).toFixed(digits) : tie ? ((below + 1) / times).toFixed(digits) : value.toFixed(digits);
}

function draw() {
  const lines = linesShown(), groups = new Map(), blocks = unique(lines.map((line) => line.block));
  view.flat = blocks.length > 1 && view.sort !== null;  // sorted across models, each line says its own
  // blocks with the same columns share a table, so that no table has columns that nothing fills
  for (const block of blocks) {
    const own = lines.filter((line) => line.block === block), key = leavesOf(own).map((each) => each.key).join(" ");
    groups.set(key, [...(groups.get(key) || []), ...own]);
  }
  const turn = ++view.turn, box = by("board");
  view.tables = groups.size;
  box.replaceChildren(...[...groups.values()].flatMap((own) => onPaper(leavesOf(own)).map((leaves) => drawTable(sorted(own), leaves, turn))));
  by("status").textContent = counted(unique(lines.map((line) => line.method)).length, "method") +
    (blocks.length === 1 ? " of " + blocks[0] : " in " + counted(blocks.length, "setting")) + (view.baseline ? "; baseline: " + titled(view.baseline) : "");
  drawHero();
  drawCharts();
  remember();
}
// paper does not scroll: a wide table is continued below
function onPaper(leaves) {
  if (!view.paper) return [leaves];
  return Array.from({ length: Math.ceil(leaves.length / PAPER) }, (_, at) => leaves.slice(at * PAPER, (at + 1) * PAPER));
}
function drawTable(lines, leaves, turn) {
  const table = make("table"), box = make("div", "scroll"), nodes = [];
  const blocks = unique(lines.map((line) => line.block)).length;
  lines.forEach((line, at) => {
    if ((blocks > 1 || view.tables > 1) && !view.flat && (at === 0 || lines[at - 1].block !== line.block)) nodes.push({ head: line.block, wide: leaves.length + 1 });
    nodes.push(line);
  });
  table.append(drawHead(leaves), make("tbody"));
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Table of results");
  box.append(table);
  show(table.tBodies[0], nodes, (line) => (line.head ? drawBlock(line) : drawLine(line, leaves)), 0, turn);
  return box;
}
// in batches, so that the first lines stand at once
function show(body, lines, drawn, from, turn) {
  if (turn !== view.turn) return;
  const until = view.paper ? lines.length : from + BATCH;
  body.append(...lines.slice(from, until).map(drawn));
  if (until < lines.length) setTimeout(show, 0, body, lines, drawn, until, turn);
}
function drawHead(leaves) {
  const groups = make("tr"), heads = make("tr"), first = make("th", "left"), head = make("thead");
  first.rowSpan = 2;
  first.append(sortButton("method", "Method", false));
  groups.append(first);
  leaves.forEach((each, at) => {
    const begins = at === 0 || leaves[at - 1].label !== each.label;
    if (begins) {
      const group = make("th", "group"), { column } = each, term = make("abbr", "", each.label.replace(" (lower is better)", "") + (column && column.lower ? " ↓" : ""));
      term.title = !column ? "Unweighted mean of the six tasks" : column.lower ? "Lower is better" : known(column.chance) ? "A guess scores " + fixed(100 * column.chance, 1) + "%" : "Higher is better";
      group.append(term);
      group.colSpan = leaves.filter((other) => other.label === each.label).length;
      groups.append(group);
    }
    const th = make("th", begins ? "first" : "");
    th.setAttribute("aria-sort", view.sort === each.key ? (view.down ? "descending" : "ascending") : "none");
    th.append(sortButton(each.key, each.ctx === null ? "score" : lengthLabel(each.ctx), Boolean(each.column && each.column.lower)));
    heads.append(th);
  });
  first.setAttribute("aria-sort", view.sort === "method" ? (view.down ? "descending" : "ascending") : "none");
  head.append(groups, heads);
  return head;
}
function sortButton(key, label, lower) {
  const active = view.sort === key, button = make("button", "", label + (active ? (view.down ? " ↓" : " ↑") : ""));
  button.type = "button";
  button.dataset.key = key;
  button.title = lower ? "Sort; lower is better" : "Sort";
  button.addEventListener("click", () => {
    view.down = active ? !view.down : !(lower || key === "method");
    view.sort = key;
    draw();
    document.querySelector(`thead button[data-key="${key}"]`).focus();
  });
  return button;
}
function drawBlock({ head, wide }) {
  const [model, settings] = named(head), tr = make("tr", "block"), th = make("th"), text = make("div");
  text.append(make("strong", "", model), " ", make("small", "", settings));
  th.colSpan = wide;
  th.title = head;
  th.append(text);
  tr.append(th);
  return tr;
}
function drawLine(line, leaves) {
  const tr = make("tr", line.first.published ? "published" : ""), name = make("th", "", titled(line.method));
  name.scope = "row";
  for (const tag of ["published", "sample", "partial"]) if (view.flat && line.first[tag]) name.append(make("span", "tag", tag));
  if (view.flat) name.append(make("small", "model", named(line.block)[0]));
  name.title = line.method + ", " + line.block;
  tr.append(name, ...leaves.map((each, at) => {
    const [row, cell] = placed(line, each), td = !row ? make("td", "none", "–") : each.column ? drawCell(row, each.column, cell) : drawAverage(row);
    if (at === 0 || leaves[at - 1].label !== each.label) td.classList.add("first");
    return td;
  }));
  return tr;
}
function drawAverage(row) {
  const td = make("td"), look = row.avgRank === 1 ? "best" : row.avgRank === 2 ? "second" : "";
  if (row.published || row.avg === null) td.append(make("span", look, row.avgText || "–"));
  else td.append(leadingTo("Avg.", row, row.avgText, look, () => openParts(titled(row.method) + " · Avg. · " + lengthLabel(row.ctx), averaged(row))));
  return td;
}
// what an average is the mean of: each task's row, column and text
function averaged(row) {
  return LEVAL.board.columns.slice(0, LEVAL.board.average).map((column) => [row, column, row.cells[column.at].t + "%"]);
}
function drawCell(row, column, cell) {
  if (!cell) return make("td", "none", "–");
  const td = make("td");
  if (cell.v === undefined) {
    const why = make("span", "bad", cell.s);
    why.title = cell.why;
    td.append(why);
    return td;
  }
  const found = comparisonOf(row, column), what = by("show").value;
  if (what in SHARES) {
    if (cell[what] === undefined) return make("td", "none", "–");
    td.append(leadingTo(SHARES[what], row, fixed(cell[what], 1), "", () => openDetail(row, column, { other: null, which: what })));
    return td;
  }
  if (what === "difference" && !found) { td.textContent = row.published ? "–" : "·"; return td; }
  const number = make("span");
  td.append(number);
  if (what === "score") number.append(cellButton(row, column, cell.t, cell.rank === 1 ? "best" : cell.rank === 2 ? "second" : ""));
  else number.append(cellButton(row, column, signed(found[0], column), ""));
  if (found && found[4]) number.append(make("span", "mark", found[4]));
  if (what !== "score") return td;
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
  button.setAttribute("aria-label", name + " " + lengthLabel(row.ctx) + " " + text + ", " + row.method + ": details");
  button.addEventListener("click", open);
  return button;
}
