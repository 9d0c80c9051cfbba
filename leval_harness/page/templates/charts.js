"use strict";
// Charts drawn at the size at which they stand, in the page's own colours, from the board's numbers.
const MOST_CHARTS = 12, MOST_METHODS = 14, COLOURS = 7, MARKS = ["●", "■", "▲", "◆", "▼", "✚", "✖"];
// where a number and the ends of its interval begin in a point of the answer
const LOSS = 1, GAIN = 4, KEY = 7, LOSS_APART = 0, KEY_APART = 3;
const markOf = (at) => MARKS[(at + Math.floor(at / COLOURS)) % MARKS.length];  // no two share colour and mark
const known = (n) => n !== null && n !== undefined;
const HEIGHT = 240, LEFT = 52, RIGHT = 14, TOP = 14, BOTTOM = 34;

function startCharts() {
  const board = LEVAL.board;
  const drawable = unique([...board.reach, ...board.rows.filter((r) => !r.published)].map((r) => r.block)).map((b) => [b, plots(b).length]).filter(([, n]) => n);
  view.blocks = drawable.map(([b]) => b);
  by("evidence").hidden = !view.blocks.length;
  view.methods = unique(board.rows.filter((r) => !r.published).map((r) => r.method)).sort();
  // few charts stand together, of many models one is chosen
  const all = view.blocks.length > 1 && drawable.reduce((sum, [, n]) => sum + n, 0) <= MOST_CHARTS;
  fill(by("chart-block"), [...(all ? [["", "all"]] : []), ...view.blocks.map((b) => [b, b])]);
  by("chart-block").parentElement.hidden = view.blocks.length < 2;
  for (const id of ["chart-block", "chart-show", "chart-cost"]) by(id).addEventListener("change", () => { view.charted = null; drawCharts(); });
  by("chart-controls").addEventListener("submit", (event) => event.preventDefault());
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { view.charted = null; drawCharts(); }, 150); });
}
function drawCharts() {
  if (by("evidence").hidden) return;
  const model = by("model").value;
  if (model !== view.model && view.blocks.includes(model)) by("chart-block").value = model;
  view.model = model;
  const block = by("chart-block").value;
  const key = [block, by("search").value, by("chart-show").value, by("chart-cost").value, view.baseline, view.compare !== null, innerWidth].join("\n");
  if (key === view.charted) return;
  view.charted = key;
  const blocks = block ? [block] : view.blocks;
  const chosenPlots = blocks.flatMap((b) => plots(b).map((plot) => ({ ...plot, block: blocks.length > 1 ? b : "" })));
  const methods = unique(chosenPlots.flatMap((p) => p.series.map((s) => s.method))).sort();
  const look = (method) => view.methods.indexOf(method);  // the same whatever is searched for
  by("legend").replaceChildren(...methods.map((method) => {
    const item = make("li", "", method);
    item.prepend(make("span", "c" + (look(method) % COLOURS), markOf(look(method)) + " "));
    return item;
  }));
  by("charts").replaceChildren();
  for (const plot of chosenPlots) {
    if (plot.crowd) { by("charts").append(make("p", "dim", plot.crowd + " methods are too many for a chart: search for some of them.")); continue; }
    const figure = make("figure"), caption = make("figcaption");
    caption.append(make("strong", "", plot.title), make("span", "dim", " " + plot.note));
    if (plot.block) caption.append(make("div", "dim", plot.block));
    figure.append(caption);
    by("charts").append(figure);
    plot.figure = figure;
  }
  for (const plot of chosenPlots) if (plot.figure) plot.figure.append((plot.line ? depthsOf : svgOf)(plot, Math.max(280, plot.figure.firstChild.clientWidth), look));
}
// what there is to draw of a block: curves over the context length, then score against cost
function plots(block) {
  const difference = by("chart-show").value === "difference" && Boolean(view.baseline);
  const rows = searched(LEVAL.board.rows.filter((row) => row.block === block && !row.published));
  const methods = new Set(rows.map((row) => row.method)).size;
  if (methods > MOST_METHODS) return [{ crowd: methods, series: [] }];  // curves nobody can tell apart
  const found = [];
  const losses = (view.compare && view.compare.reach) || {};  // to the baseline chosen
  const reach = searched(LEVAL.board.reach.filter((line) => line.block === block)), lines = reach.filter((line) => line.points.length);
  if (lines.length) {
    const numbers = (line, p, at, apart) => (apart ? (losses[line.block + "\n" + line.method] || {})[p[0]] || [] : p).slice(at, at + 3);
    const has = (at, apart) => lines.some((line) => line.points.some((p) => known(numbers(line, p, at, apart)[0])));
    const told = (title, at, look, note, to = () => ({})) => has(at, look.apart) && found.push(curves(title, note, lines.map((line) => ({ method: line.method, points: line.points.map((p, n) => [p[0], ...numbers(line, p, at, look.apart), undefined, lossesAt(line, p[0], to(line, n))]) })), look));
    const apart = difference && has(LOSS_APART, true), keysApart = difference && has(KEY_APART, true);
    told("Loss of the same tokens", apart ? LOSS_APART : LOSS, { apart }, "nats a token, lower is better");
    told("What each step of context adds", GAIN, { zero: true }, "nats a token from the next shorter length, higher is better", (line, n) => ({ from: (line.points[n - 1] || [])[0] }));
    told("Loss on key tokens", keysApart ? KEY_APART : KEY, { apart: keysApart }, "nats a token, lower is better; " + (lines.every((line) => line.referred || !line.keys) ? "a reference model’s key tokens" : "each method’s own key tokens"), () => ({ key: true }));
  }
  for (const column of LEVAL.board.columns) {
    if (lines.length && / loss$/.test(column.label)) continue;
    const with_ = rows.filter((row) => row.ctx !== null && row.cells[column.at] && row.cells[column.at].v !== undefined);
    if (new Set(with_.map((row) => row.ctx)).size < 2) continue;
    const apart = difference && with_.some((row) => comparisonOf(row, column));
    const unit = apart && column.nats ? "nats a token" : column.raw ? "" : apart ? "points" : "%";
    const series = unique(with_.map((row) => row.method)).map((method) => ({ method, points: with_.filter((row) => row.method === method).map((row) => {
      const cell = row.cells[column.at], c = comparisonOf(row, column);
      return [row.ctx, ...(apart ? (c ? c.slice(0, 3) : [null, null, null]) : [cell.v, cell.lo, cell.hi]), undefined, leads([row, column])];
    }) }));
    found.push(curves(column.label, [unit, column.lower ? "lower is better" : ""].filter(Boolean).join(", "), series, { apart, corrected: apart, level: column.chance !== null && !column.raw && !apart ? 100 * column.chance : undefined }));
  }
  const cost = costPlot(rows);
  const depths = reach.filter((line) => line.retrieval && line.retrieval.depths.length).map((line) => ({
    title: line.method + ": needles found by depth", note: "(top: the beginning of the prompt; found of asked)", series: [], line,
  }));
  return [...(cost ? [...found, cost] : found).filter((plot) => plot.series.some((s) => s.points.length)), ...depths];
}
const leads = (place) => place && (() => openDetail(...place));
// differences to the baseline where `apart`; a line at zero, or at another level
function curves(title, note, series, { apart = false, corrected = false, zero = apart, level }) {
  const kept = series.map((s) => ({ method: s.method, points: s.points.filter((p) => known(p[1])).sort((a, b) => a[0] - b[0]) })).filter((s) => s.points.length);
  const intervals = kept.some((s) => s.points.some((p) => known(p[2])));
  const told = [note, intervals ? (corrected ? "intervals at the corrected level" : "95% intervals") : ""].filter(Boolean).join("; ");
  return { title: title + (apart ? " against " + view.baseline : ""), note: told && "(" + told + ")", series: kept, lines: true, log: true, zero, level, x: lengthLabel };
}
// the number that most rows of the block have, against what its run took
function costPlot(rows) {
  const kind = by("chart-cost").value, unit = { seconds: "seconds", tokens: "tokens read and written", memory: "GiB at the peak" }[kind];
  const points = (column) => rows.flatMap((row) => {
    const cell = column === "avg" ? Object.values(row.cells).find((c) => c.run !== undefined) : row.cells[column.at];
    const value = column === "avg" ? row.avg : cell && cell.v, cost = cell && cell.run !== undefined ? LEVAL.board.costs[cell.run][kind] : undefined;
    if (!known(value) || cost === undefined) return [];
    return [{ method: row.method, run: cell.run, point: [kind === "memory" ? cost / 2 ** 30 : cost, value, cell.lo, cell.hi, row.ctx, column === "avg" ? () => openParts(row.method + " · Avg. · " + lengthLabel(row.ctx), averaged(row)) : leads([row, column])] }];
  });
  const spread = (found) => new Set(found.map((p) => p.point[0])).size > 1;
  // of a run that was measured at several lengths the longest stands for it
  const longest = (found) => {
    const most = new Map();
    for (const p of found) most.set(p.run, Math.max(most.get(p.run) ?? 0, p.point[4] ?? 0));
    return found.filter((p) => (p.point[4] ?? 0) === most.get(p.run));
  };
  const candidates = [...(LEVAL.board.average ? ["avg"] : []), ...LEVAL.board.columns].map((column) => [column, longest(points(column))]);
  // the first that has several methods: the average, then scores, then perplexities
  const best = candidates.find(([, found]) => spread(found) && new Set(found.map((p) => p.method)).size > 1);
  if (!best) return null;
  const column = best[0], label = column === "avg" ? "Average" : column.label;
  const several = new Set(best[1].map((p) => p.point[4])).size > 1;
  if (!several) best[1].forEach((p) => { p.point[4] = undefined; });
  const series = unique(best[1].map((p) => p.method)).map((method) => ({ method, points: best[1].filter((p) => p.method === method).map((p) => (column === "avg" ? [p.point[0], p.point[1], null, null, p.point[4], p.point[5]] : p.point)) }));
  return { title: label + " against cost", note: "(" + unit + " of the whole run" + (several ? "; labels: context" : "") + ")", series, lines: false, log: false, x: (n) => short(n) };
}
function short(n) {
  if (n >= 1e6) return +(n / 1e6).toPrecision(2) + "M";
  if (n >= 1e4) return +(n / 1e3).toPrecision(2) + "k";
  return String(+n.toPrecision(3));
}
function drawn(tag, attributes, text) {
  const node = document.createElementNS("http" + "://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
// a cell a length and part of the prompt, the fuller the more needles were found
function depthsOf(plot, width) {
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": plot.title + " " + plot.note });
  const { depths } = plot.line.retrieval, { parts } = LEVAL.board, lengths = unique(depths.map((d) => d[0]));
  const wide = (width - LEFT - RIGHT) / lengths.length, high = (HEIGHT - BOTTOM) / parts;
  for (const part of [0, parts / 2, parts]) svg.append(drawn("text", { x: LEFT - 6, y: Math.min(HEIGHT - BOTTOM, Math.max(10, part * high + 4)), class: "end" }, (100 * part) / parts + "%"));
  lengths.forEach((length, at) => svg.append(drawn("text", { x: LEFT + (at + 0.5) * wide, y: HEIGHT - 12, class: "middle" }, lengthLabel(length))));
  for (const [length, part, right, asked] of depths) {
    const x = LEFT + lengths.indexOf(length) * wide, y = part * high;
    const cell = drawn("rect", { x: x + 1, y: y + 1, width: wide - 2, height: high - 2, class: "depth", "fill-opacity": 0.75 * (right / asked) });
    cell.append(drawn("title", {}, lengthLabel(length) + ", " + partLabel(part) + ": " + right + " of " + asked));
    const open = probesAt(plot.line, length, part), group = drawn("g", open ? { class: "leads" } : {});
    group.append(cell, drawn("text", { x: x + wide / 2, y: y + high / 2 + 4, class: "middle full" }, right + "/" + asked));
    if (open) group.addEventListener("click", open);
    svg.append(group);
  }
  return svg;
}
function svgOf(plot, width, look) {
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": plot.title + " " + plot.note });
  const points = plot.series.flatMap((s) => s.points);
  const xs = unique(points.map((p) => p[0])).sort((a, b) => a - b);
  const ys = points.flatMap((p) => [p[1], p[2], p[3]]).filter(known);
  if (plot.zero) ys.push(0);
  if (known(plot.level)) ys.push(plot.level);
  const bend = plot.zero ? bendOf(points.map((p) => Math.abs(p[1])).filter(Boolean)) : 0, scale = bend ? (n) => Math.asinh(n / bend) : (n) => n;
  let [low, high] = [scale(Math.min(...ys)), scale(Math.max(...ys))];
  if (low === high) { low -= 1; high += 1; }
  const room = 0.05 * (high - low), move = plot.log ? Math.log : (n) => n;
  low -= room; high += room;
  const [first, last] = [move(xs[0]), move(xs[xs.length - 1])];
  const side = 24;
  const X = (n) => LEFT + side + ((width - LEFT - RIGHT - 2 * side) * (first === last ? 0.5 : (move(n) - first) / (last - first)));
  const Y = (n) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - scale(n))) / (high - low);
  const told = [];
  for (const tick of bend ? bentTicks(bend).filter((t) => scale(t) >= low && scale(t) <= high) : ticks(low, high)) {
    if (told.some((y) => Math.abs(y - Y(tick)) < 14)) continue;
    told.push(Y(tick));
    svg.append(drawn("line", { x1: LEFT, x2: width - RIGHT, y1: Y(tick), y2: Y(tick), class: "grid" }));
    svg.append(drawn("text", { x: LEFT - 6, y: Y(tick) + 4, class: "end" }, String(tick)));
  }
  let free = Infinity;  // from the right: the longest length is named whatever room there is
  for (const x of (plot.log ? xs : ticks(xs[0], xs[xs.length - 1]).filter((t) => t >= xs[0])).toReversed()) {
    if (X(x) > free) continue;
    free = X(x) - 38;
    svg.append(drawn("text", { x: X(x), y: HEIGHT - 12, class: "middle" }, plot.x(x)));
  }
  if (plot.zero) svg.append(drawn("line", { x1: LEFT, x2: width - RIGHT, y1: Y(0), y2: Y(0), class: "zero" }));
  if (known(plot.level)) {
    svg.append(drawn("line", { x1: LEFT, x2: width - RIGHT, y1: Y(plot.level), y2: Y(plot.level), class: "chance" }));
    svg.append(drawn("text", { x: width - RIGHT, y: Y(plot.level) - 4, class: "end" }, "chance"));
  }
  // bands where there are many lengths; where there are few, bars side by side
  plot.bands = plot.lines && xs.length > 4;
  plot.series.forEach((s, at) => {
    const aside = plot.lines && !plot.bands ? (at - (plot.series.length - 1) / 2) * 7 : 0;
    drawSeries(svg, plot, s, (n) => X(n) + aside, Y, look(s.method));
  });
  return svg;
}
function drawSeries(svg, plot, s, X, Y, at) {
  const colour = "c" + (at % COLOURS), bands = s.points.filter((p) => known(p[2]) && known(p[3]));
  if (plot.bands && bands.length > 1)
    svg.append(drawn("polygon", { points: [...bands.map((p) => [X(p[0]), Y(p[3])]), ...bands.map((p) => [X(p[0]), Y(p[2])]).reverse()].join(" "), class: "band " + colour }));
  else for (const p of bands) svg.append(drawn("line", { x1: X(p[0]), x2: X(p[0]), y1: Y(p[2]), y2: Y(p[3]), class: "error " + colour }));
  if (plot.lines) svg.append(drawn("polyline", { points: s.points.map((p) => [X(p[0]), Y(p[1])]).join(" "), class: "curve " + colour, "stroke-dasharray": ["", "6 3", "2 3"][Math.floor(at / COLOURS) % 3] }));
  for (const p of s.points) {
    const mark = drawn("text", { x: X(p[0]), y: Y(p[1]) + 4, class: "middle point " + colour }, markOf(at));
    mark.append(drawn("title", {}, s.method + ", " + (p[4] !== undefined ? lengthLabel(p[4]) + ", " : "") + plot.x(p[0]) + ": " + p[1]));
    if (p[5]) {
      mark.classList.add("leads");
      mark.addEventListener("click", p[5]);
    }
    svg.append(mark);
    if (p[4]) svg.append(drawn("text", { x: X(p[0]) + 8, y: Y(p[1]) - 4 }, lengthLabel(p[4])));
  }
}
// where a few differences dwarf the others the scale bends (asinh): both can be read
function bendOf(sizes) {
  const sorted = [...sizes].sort((a, b) => a - b), small = sorted[Math.floor(sorted.length / 4)];
  return sorted.length > 3 && sorted[sorted.length - 1] > 20 * small ? small : 0;
}
function bentTicks(bend) {
  const first = 10 ** Math.floor(Math.log10(bend)), found = [0];
  for (let tick = first; tick < 1e9 * first; tick *= 10) found.push(+tick.toPrecision(3), -tick.toPrecision(3));
  return found;
}
function ticks(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 3 || 1));
  const wide = [1, 2, 5, 10].map((n) => n * step).find((n) => (high - low) / n <= 5);
  const found = [];
  for (let n = Math.ceil(low / wide); n * wide <= high; n++) found.push(+(n * wide).toPrecision(6));
  return found;
}
