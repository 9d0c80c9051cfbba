"use strict";
// Charts drawn at the size at which they stand, in the page's own colours, from the board's numbers.
const MOST_CHARTS = 12, MOST_METHODS = 14, COLOURS = 7, MARKS = ["●", "■", "▲", "◆", "▼", "✚", "✖"];
const markOf = (at) => MARKS[(at + Math.floor(at / COLOURS)) % MARKS.length];  // no two share colour and mark
const SMALL = 240, LARGE = 420, LEFT = 56, RIGHT = 14, TOP = 26, BOTTOM = 48;

function startCharts() {
  const board = LEVAL.board, all = board.rows.filter((r) => !r.published), real = all.filter((r) => !r.sample);
  const ours = real.length || board.gains.length ? real : all;  // the bundled sample shows that things run, and no more
  const blocks = unique(ours.map((r) => r.block));
  const blocksOf = unique([...board.gains, ...ours].map((r) => r.block));
  view.methods = unique([...board.gains, ...ours].map((r) => r.method)).sort();
  const columns = (block) => board.columns.filter((c) => lengthsOf(block, c).length > 1).sort((a, b) => b.nats - a.nats || a.at - b.at);
  const gains = (block) => (board.gains.some((line) => line.block === block && line.points.length > 1) ? [GAIN] : []);
  view.heroes = new Map(blocksOf.map((block) => [block, [...gains(block), ...columns(block)]]).filter(([, sources]) => sources.length));
  by("hero").hidden = !view.heroes.size;
  fill(by("hero-block"), [...view.heroes.keys()].map((b) => [b, b]));
  by("hero-block").parentElement.hidden = view.heroes.size < 2;
  fillMetrics();
  by("hero-block").addEventListener("change", () => { fillMetrics(); drawHero(); });
  by("hero-metric").addEventListener("change", drawHero);
  by("hero-controls").addEventListener("submit", (event) => event.preventDefault());
  const drawable = blocks.filter((b) => plots(b).length);
  by("evidence").hidden = !drawable.length;
  fill(by("chart-block"), drawable.map((b) => [b, b]));
  by("chart-block").parentElement.hidden = drawable.length < 2;
  for (const id of ["chart-block", "chart-show"]) by(id).addEventListener("change", drawCharts);
  by("chart-controls").addEventListener("submit", (event) => event.preventDefault());
  by("evidence").addEventListener("toggle", drawCharts);
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { view.heroKey = null; drawHero(); drawCharts(); }, 150); });
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details.more")) each.open = true;
    view.paper = true;
    draw();
  });
  addEventListener("afterprint", () => { view.paper = false; draw(); });
}
// what full context gains over short windows, in bins of position
const GAIN = { at: "gain", label: "Gain from context" };
function gainPlot(block) {
  const series = searched(LEVAL.board.gains.filter((line) => line.block === block)).map((line) => ({ method: line.method, points: line.points.map((p) => [...p, undefined, null]) }));
  const plot = curves("Gain from context", "nats/token, higher is better", series, { zero: true });
  const bands = plot.bandNote && "intervals: gains that these texts cannot rule out (one-sided tests, blocks of 512 tokens as units)";
  return { ...plot, bandNote: ["gain: loss after a short window minus loss after the whole text before a token", bands].filter(Boolean).join("; ") };
}
// the lengths at which some method of a block has a number
function lengthsOf(block, column) {
  return unique(LEVAL.board.rows.filter((r) => r.block === block && !r.published && r.ctx !== null && r.cells[column.at]?.v !== undefined).map((r) => r.ctx));
}
function fillMetrics() {
  const columns = view.heroes.get(by("hero-block").value) || [], before = by("hero-metric").value;
  fill(by("hero-metric"), columns.map((c) => [String(c.at), c.label]));
  if (columns.some((c) => String(c.at) === before)) by("hero-metric").value = before;
  by("hero-metric").parentElement.hidden = columns.length < 2;
}
// the one large figure: a metric by context length for each method, with bands and the claimed length
function drawHero() {
  if (by("hero").hidden) return;
  const model = by("model").value;
  if (model !== view.heroModel && view.heroes.has(model)) { by("hero-block").value = model; fillMetrics(); }
  view.heroModel = model;
  const block = by("hero-block").value, column = by("hero-metric").value === GAIN.at ? GAIN : LEVAL.board.columns[by("hero-metric").value];
  const key = [block, column.at, by("search").value, innerWidth].join("\n");
  if (key === view.heroKey) return;
  view.heroKey = key;
  const rows = searched(LEVAL.board.rows.filter((row) => row.block === block && !row.published));
  const plot = column === GAIN ? gainPlot(block) : curvesOf(column, rows, false), box = by("hero-figure");
  by("hero-title").textContent = lossName(column) + (column === GAIN ? " by position" : " by context length") + (view.heroes.size > 1 ? ": " + named(block)[0] : "");
  if (plot.series.length > MOST_METHODS) { box.replaceChildren(make("p", "dim", plot.series.length + " methods are too many for a figure: search for some of them.")); return; }
  const legend = make("ul", "legend"), figure = make("figure");
  figure.append(legend);
  plot.series.forEach((s) => legend.append(legendItem(s.method)));
  box.replaceChildren(figure);
  const claimed = LEVAL.board.claimed[block], [least, most] = [Math.min, Math.max].map((of) => of(...plot.series.flatMap((s) => s.points.map((p) => p[0]))));
  if (claimed >= least && claimed <= 1.3 * most) plot.claimed = claimed;
  plot.label = lossName(column) + plot.note;
  if (column === GAIN) plot.across = "position, tokens";
  if (plot.series.length) figure.append(svgOf(plot, Math.max(300, box.clientWidth), LARGE));
  figure.append(make("figcaption", "dim", [plot.bandNote, plot.bent ? "the axis is logarithmic beyond ±" + Number(plot.bent.toPrecision(1)) : "", claimed ? (plot.claimed ? "dashed: " : "") + "the checkpoint claims a context of " + lengthLabel(claimed) : ""].filter(Boolean).join("; ")));
}
const look = (method) => view.methods.indexOf(method);  // the same whatever is searched for
function legendItem(method) {
  const item = make("li", "", titled(method));
  item.prepend(make("span", "c" + (look(method) % COLOURS), markOf(look(method)) + " "));
  return item;
}
function searched(rows) {
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => words.every((word) => (row.method + " " + titled(row.method) + " " + row.block).toLowerCase().includes(word)));
}
function drawCharts() {
  if (by("evidence").hidden || !by("evidence").open) return;
  const model = by("model").value;
  if (model !== view.model && [...by("chart-block").options].some((option) => option.value === model)) by("chart-block").value = model;
  view.model = model;
  const found = plots(by("chart-block").value);
  by("legend").replaceChildren(...unique(found.flatMap((p) => p.series.map((s) => s.method))).sort().map(legendItem));
  by("charts").replaceChildren();
  for (const plot of found.slice(0, MOST_CHARTS)) {
    if (plot.crowd) { by("charts").append(make("p", "dim", plot.crowd + " methods are too many for a chart: search for some of them.")); continue; }
    const figure = make("figure"), caption = make("figcaption");
    caption.append(make("strong", "", plot.title), make("span", "dim", " " + [plot.note, plot.bandNote].filter(Boolean).join("; ")));
    figure.append(caption);
    by("charts").append(figure);
    plot.figure = figure;
  }
  for (const plot of found) if (plot.figure) plot.figure.append((plot.line ? depthsOf : svgOf)(plot, Math.max(280, plot.figure.firstChild.clientWidth), SMALL));
}
// what there is to draw of a block: curves by context length, a score against what it cost, needles
function plots(block) {
  const difference = by("chart-show").value === "difference" && Boolean(view.baseline);
  const rows = searched(LEVAL.board.rows.filter((row) => row.block === block && !row.published));
  const methods = new Set(rows.map((row) => row.method)).size;
  if (methods > MOST_METHODS) return [{ crowd: methods, series: [] }];  // curves nobody can tell apart
  const found = LEVAL.board.columns.filter((column) => lengthsOf(block, column).length > 1).map((column) => curvesOf(column, rows, difference));
  const depths = LEVAL.board.retrieval.filter((line) => line.block === block && line.depths.length).map((line) => ({
    title: titled(line.method) + ": needles found by depth", note: "(top: the beginning of the prompt; found of asked)", series: [], line,
  }));
  const cost = costPlot(rows);
  return [...(cost ? [...found, cost] : found).filter((plot) => plot.series.length), ...depths];
}
function curvesOf(column, rows, difference) {
  const with_ = rows.filter((row) => row.ctx !== null && row.cells[column.at]?.v !== undefined);
  const apart = difference && with_.some((row) => comparisonOf(row, column));
  const unit = (apart && column.nats) || column.ppl ? "nats/token" : column.raw ? "" : apart ? "points" : "%";
  const nats = column.ppl && !apart ? (v) => (known(v) ? Math.log(v) : v) : (v) => v;  // a perplexity as the loss that it is made of
  const series = unique(with_.map((row) => row.method)).map((method) => ({ method, points: with_.filter((row) => row.method === method).map((row) => {
    const cell = row.cells[column.at], c = comparisonOf(row, column);
    return [row.ctx, ...(apart ? (c ? c.slice(0, 3) : [null, null, null]) : [cell.v, cell.lo, cell.hi].map(nats)), undefined, leads([row, column])];
  }) }));
  return curves(lossName(column), [unit, column.lower ? "lower is better" : ""].filter(Boolean).join(", "), series, { apart, corrected: apart, level: known(column.chance) && !column.raw && !apart ? 100 * column.chance : undefined });
}
const lossName = (column) => (column.ppl ? column.label.replace(/ (token|paper)? ?ppl$/, "") + ": NLL" : column.label.replace(" (lower is better)", ""));
const leads = (place) => place && (() => openDetail(...place));
// differences to the baseline where `apart`; a line at zero, or at another level
function curves(title, note, series, { apart = false, corrected = false, zero = apart, level }) {
  const kept = series.map((s) => ({ method: s.method, points: s.points.filter((p) => known(p[1])).sort((a, b) => a[0] - b[0]) })).filter((s) => s.points.length);
  const intervals = kept.some((s) => s.points.some((p) => known(p[2])));
  const bandNote = intervals ? (corrected ? "intervals at the corrected level" : "95% intervals, by document") : "";
  return { title: title + (apart ? " against " + titled(view.baseline) : ""), note: note && " (" + note + ")", bandNote, series: kept, lines: true, log: true, zero, level, x: lengthLabel };
}
// the number that most rows of the block have, against what its run took
function costPlot(rows) {
  const points = (column) => rows.flatMap((row) => {
    const cell = column === "avg" ? Object.values(row.cells).find((c) => c.run !== undefined) : row.cells[column.at];
    const value = column === "avg" ? row.avg : cell && cell.v, cost = cell && cell.run !== undefined ? LEVAL.board.costs[cell.run].seconds : undefined;
    if (!known(value) || cost === undefined) return [];
    const open = column === "avg" ? () => openParts(titled(row.method) + " · Avg. · " + lengthLabel(row.ctx), averaged(row)) : leads([row, column]);
    return [{ method: row.method, run: cell.run, point: [cost, value, null, null, row.ctx, open] }];
  });
  // of a run that was measured at several lengths the longest stands for it
  const longest = (found) => found.filter((p) => !found.some((other) => other.run === p.run && other.point[4] > p.point[4]));
  // times that differ by less than half are the machine's noise
  const spread = (found) => new Set(found.map((p) => p.point[1])).size > 1 && Math.max(...found.map((p) => p.point[0])) > 1.5 * Math.min(...found.map((p) => p.point[0]));
  const candidates = [...(LEVAL.board.average ? ["avg"] : []), ...LEVAL.board.columns].map((column) => [column, longest(points(column))]);
  const best = candidates.find(([, found]) => found.length && spread(found) && new Set(found.map((p) => p.method)).size > 1);
  if (!best) return null;
  const [column, found] = best, series = unique(found.map((p) => p.method)).map((method) => ({ method, points: found.filter((p) => p.method === method).map((p) => p.point) }));
  return { title: (column === "avg" ? "Average" : column.label) + " against cost", note: " (seconds of the whole run; labels: context)", series, lines: false, log: false, x: (n) => short(n) };
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
// what opens the questions of RULER's tasks at a length whose needle lies in one part of the prompt
function probesAt(line, length, part) {
  const rows = LEVAL.board.rows.filter((row) => row.method === line.method && row.ctx === length && named(row.block)[0] === named(line.block)[0]);
  const own = rows.filter((row) => row.block === line.block);
  const parts = (own.length ? own : rows).flatMap((row) => LEVAL.board.columns.filter((c) => line.needles.includes(c.task) && row.cells[c.at]?.v !== undefined)
    .map((column) => [row, column, row.cells[column.at].t + "%"]));
  return parts.length ? () => openParts(titled(line.method) + " · " + partLabel(part) + " · " + lengthLabel(length), parts, { which: "part-" + part }) : null;
}
// a cell a length and part of the prompt, the fuller the more needles were found
function depthsOf(plot, width, HEIGHT) {
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": plot.title + " " + plot.note });
  const { depths } = plot.line, { parts } = LEVAL.board, lengths = unique(depths.map((d) => d[0]));
  const wide = (width - LEFT - RIGHT) / lengths.length, high = (HEIGHT - BOTTOM) / parts;
  for (const part of [0, parts / 2, parts]) svg.append(drawn("text", { x: LEFT - 6, y: Math.min(HEIGHT - BOTTOM, Math.max(10, part * high + 4)), class: "end" }, (100 * part) / parts + "%"));
  lengths.forEach((length, at) => svg.append(drawn("text", { x: LEFT + (at + 0.5) * wide, y: HEIGHT - BOTTOM + 18, class: "middle" }, lengthLabel(length))));
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
function svgOf(plot, width, HEIGHT) {
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": plot.title + " " + plot.note });
  const points = plot.series.flatMap((s) => s.points);
  const xs = unique([...points.map((p) => p[0]), ...(plot.claimed ? [plot.claimed] : [])]).sort((a, b) => a - b);
  const ys = points.map((p) => p[1]), span = Math.max(...ys) - Math.min(...ys) || Math.abs(ys[0]) || 1;
  // intervals that are far wider than what the methods differ by end at the edge of the figure
  const [under, above] = [Math.min(...ys) - span, Math.max(...ys) + span];
  ys.push(...points.flatMap((p) => [p[2], p[3]]).filter(known).map((y) => Math.min(above, Math.max(under, y))));
  if (plot.zero) ys.push(0);
  if (known(plot.level)) ys.push(plot.level);
  const bend = plot.zero ? bendOf(points.map((p) => Math.abs(p[1])).filter(Boolean)) : 0, scale = bend ? (n) => Math.asinh(n / bend) : (n) => n;
  plot.bent = bend;
  let [low, high] = [scale(Math.min(...ys)), scale(Math.max(...ys))];
  if (low === high) { low -= 1; high += 1; }
  const room = 0.05 * (high - low), move = plot.log ? Math.log : (n) => n;
  low -= room; high += room;
  const [first, last] = [move(xs[0]), move(xs[xs.length - 1])];
  const side = 24;
  const X = (n) => LEFT + side + ((width - LEFT - RIGHT - 2 * side) * (first === last ? 0.5 : (move(n) - first) / (last - first)));
  const Y = (n) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - Math.min(high, Math.max(low, scale(n))))) / (high - low);
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
    svg.append(drawn("text", { x: X(x), y: HEIGHT - BOTTOM + 18, class: "middle" }, plot.x(x)));
  }
  svg.append(drawn("text", { x: width / 2, y: HEIGHT - 6, class: "middle" }, plot.across || (plot.log ? "context length, tokens" : "seconds")));
  if (plot.label) svg.append(drawn("text", { x: 4, y: 12 }, plot.label));
  if (plot.claimed) {
    svg.append(drawn("line", { x1: X(plot.claimed), x2: X(plot.claimed), y1: TOP + 12, y2: HEIGHT - BOTTOM, class: "claimed" }));
    svg.append(drawn("text", { x: X(plot.claimed) - 5, y: TOP + 22, class: "end" }, "claimed: " + lengthLabel(plot.claimed)));
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
    svg.append(drawn("polygon", { points: [...bands.map((p) => [X(p[0]), Y(p[3])]), ...bands.map((p) => [X(p[0]), Y(p[2])]).reverse()].join(" "), class: "band " + colour + (plot.series.length > 5 ? " many" : "") }));
  else for (const p of bands) svg.append(drawn("line", { x1: X(p[0]), x2: X(p[0]), y1: Y(p[2]), y2: Y(p[3]), class: "error " + colour }));
  if (plot.lines) svg.append(drawn("polyline", { points: s.points.map((p) => [X(p[0]), Y(p[1])]).join(" "), class: "curve " + colour, "stroke-dasharray": ["", "6 3", "2 3"][Math.floor(at / COLOURS) % 3] }));
  for (const p of s.points) {
    const mark = drawn("text", { x: X(p[0]), y: Y(p[1]) + 4, class: "middle point " + colour }, markOf(at));
    mark.append(drawn("title", {}, titled(s.method) + ", " + (p[4] !== undefined ? lengthLabel(p[4]) + ", " : "") + plot.x(p[0]) + ": " + p[1]));
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
