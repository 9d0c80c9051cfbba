"use strict";
// The answer, before any number is looked for: how far each method reads, and where methods differ.
const FIRST = 12, MANY = 4;

function drawAnswer() {
  const key = [by("model").value, by("search").value, view.baseline, view.compare !== null].join("\n");
  if (key === view.answered) return;
  view.answered = key;
  by("reach").replaceChildren(...drawReach());
  by("verdict").replaceChildren(...drawVerdict());
}
function searched(lines) {
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  return lines.filter((line) => words.every((word) => (line.method + " " + line.block).toLowerCase().includes(word)));
}
function chosen(lines) {
  const model = by("model").value;
  return searched(lines).filter((line) => model === "" || line.block === model);
}
// the first lines, and a button for the rest: 3 and 3,000 are both answered at once
function shortened(nodes) {
  if (nodes.length <= FIRST) return nodes;
  const more = make("button", "", "Show all " + nodes.length);
  more.type = "button";
  nodes.slice(FIRST).forEach((node) => { node.hidden = true; });
  more.addEventListener("click", () => { nodes.forEach((node) => { node.hidden = false; }); more.remove(); });
  return [...nodes, more];
}
function drawReach() {
  const lines = chosen(LEVAL.board.reach);
  const gaps = LEVAL.board.gaps.length ? [make("ul", "notes")] : [];
  LEVAL.board.gaps.forEach((text) => gaps[0].append(make("li", "", text)));
  if (!lines.length) return [...(LEVAL.board.reach.length ? [make("p", "dim", "Reach was not asked of these.")] : []), ...gaps];
  const longest = Math.max(...lines.flatMap((l) => [l.claimed || 0, ...askedOf(l)]));
  const nodes = [];
  lines.forEach((line, at) => {
    if (at === 0 || lines[at - 1].block !== line.block) {
      const [model, settings] = named(line.block), head = make("h3", "", model);
      if (settings) head.append(make("small", "", " " + settings));
      nodes.push(head);
    }
    nodes.push(drawLine(line, longest));
  });
  return [...shortened(nodes), make("p", "dim", "Green: no longer context made it worse; hatched: so few texts or probes cannot tell; the mark: what the config claims. Ends of 95% intervals."), ...gaps];
}
function drawLine(line, longest) {
  const box = make("div", "reach"), found = line.retrieval;
  const asked = Math.max(...askedOf(line)), rests = ["asked up to " + lengthLabel(asked)];
  if (line.claimed) rests.unshift("config: " + lengthLabel(line.claimed));
  if (line.texts) {
    const told = make("p");
    const [reads, gains] = [line.noLoss, line.gain].map((text) => text !== "cannot tell");
    const lead = (text, ends) => leading(text, ends, "texts", (length) => lossesAt(line, length));
    const loss = lead(line.noLoss, line.noLossEnds), gain = lead(line.gain, line.gainEnds);
    told.append(make("strong", "", line.method));
    if (reads) told.append(" reads ", loss, (line.noLoss.includes(", ") ? "," : "") + " without loss");
    else told.append(": how far it reads without loss, so few texts ", loss);
    if (gains) told.append(reads ? ", and still gains up to " : "; it still gains up to ", gain, ".");
    else if (reads) told.append("; up to where it still gains, so few texts ", gain, ".");
    else told.append(", nor up to where it still gains.");
    box.append(told);
    rests.push(counted(line.texts, "text"), line.tokens.toLocaleString("en") + " tokens at each length" + (line.keys ? ", " + line.keys.toLocaleString("en") + " of them key tokens" : ""), line.tasks.join(", "));
  }
  if (found) {
    const told = make("p"), percent = found.threshold.toFixed(1) + "%";
    told.append(make("strong", "", line.method));
    const said = [];
    if (found.kept !== "–") said.push([" retrieves as at its shortest length ", found.kept, found.keptEnds]);
    said.push([" retrieves " + percent + " or more ", found.above === "nowhere" ? "at no length that was asked" : found.above, found.aboveEnds]);
    said.forEach(([what, text, ends], at) => {
      const unknown = text === "cannot tell";
      told.append((at ? ";" : "") + what + (unknown ? "up to a length that so few probes " : text.startsWith("at no") ? "" : "up to "), leading(text, ends, "probes", (length) => probesAt(line, length)));
    });
    told.append(".");
    box.append(told);
    rests.push(counted(found.probes, "probe"), found.tasks.join(", "));
  }
  const [low, high] = (line.texts ? line.noLossEnds : found.keptEnds) || [null, asked];
  box.append(drawTrack([["asked", asked], ["maybe", high], ["sure", low]], line.claimed, longest), make("small", "", rests.join(" · ")));
  return box;
}
function askedOf(line) {
  return [...line.points.map((p) => p[0]), ...(line.retrieval ? line.retrieval.lengths : [])];
}
function drawTrack(ends, claimed, longest) {
  const track = make("div", "track"), scale = (n) => (100 * n) / longest + "%";
  for (const [name, end] of ends) {
    if (!end) continue;
    const bar = make("span", name);
    bar.style.width = scale(end);
    track.append(bar);
  }
  if (claimed) {
    const mark = make("span", "claim");
    mark.style.left = "calc(" + scale(claimed) + " - 2px)";
    mark.title = "The config claims " + lengthLabel(claimed);
    track.append(mark);
  }
  return track;
}
// a length, which leads to what says so there
function leading(text, ends, noun, at) {
  const length = (ends || []).find(Boolean), open = length ? at(length) : null;
  if (!open) return make("strong", "", text);
  const button = make("button", "plain", text);
  button.type = "button";
  button.setAttribute("aria-label", text + ": the " + noun + " at " + lengthLabel(length));
  button.addEventListener("click", open);
  return button;
}
// what opens the texts, of every task, whose losses make a point of the answer; beside them those
// at a shorter length, where the point is a gain; on their key tokens alone, where it is of these
function lossesAt(line, length, { from, key } = {}) {
  const rowOf = (ctx) => LEVAL.board.rows.find((r) => r.block === line.block && r.method === line.method && r.ctx === ctx);
  const row = rowOf(length), told = (r, c) => r && r.cells[c.at] && r.cells[c.at].v !== undefined;
  const parts = LEVAL.board.columns.filter((c) => / loss$/.test(c.label) && told(row, c) && (from === undefined || told(rowOf(from), c)));
  const how = { other: from === undefined ? undefined : rowOf(from), key: key && (line.referred ? "referred" : "own") };
  return parts.length ? () => openParts(line.method + " · " + lengthLabel(length), parts.map((c) => [row, c, row.cells[c.at].t]), how) : null;
}
// what opens the questions of RULER's tasks at a length, of one part of the prompt where that is said
function probesAt(line, length, part) {
  const rows = LEVAL.board.rows.filter((row) => row.method === line.method && row.ctx === length && named(row.block)[0] === named(line.block)[0]);
  const own = rows.filter((row) => row.block === line.block), { names, needles } = line.retrieval, tasks = part === undefined ? names : needles;
  const parts = (own.length ? own : rows).flatMap((row) => LEVAL.board.columns.filter((c) => tasks.includes(c.task) && row.cells[c.at] && row.cells[c.at].v !== undefined)
    .map((column) => [row, column, row.cells[column.at].t + "%"]));
  const at = part === undefined ? "" : partLabel(part) + " · ";
  return parts.length ? () => openParts(line.method + " · " + at + lengthLabel(length), parts, part === undefined ? {} : { which: "part-" + part }) : null;
}
// against the baseline: of reach each length with what its interval says, of everything else on how
// many tasks and lengths a method is better, worse, not told apart
function drawVerdict() {
  if (!view.compare) return [];
  const blocks = new Set(chosen([...LEVAL.board.reach, ...LEVAL.board.rows]).map((line) => line.block)).size;
  const over = blocks > MANY;  // then over all models
  const losses = over ? counts(reachParts(), over) : byLength(), tests = counts(testParts(), over);
  if (!losses && !tests) return [];
  const models = over ? " of " + blocks + " models and settings" : "";
  const told = [], beside = tests ? tests.beside : 0;
  if (losses) told.push(make("p", "", "Against " + view.baseline + ", on the same tokens after as much context" + (over ? ", at every length" + models : "") + " (nats a token; 95% intervals by text, not corrected):"), losses.box);
  if (tests) told.push(make("p", "", "Against " + view.baseline + ", on the same questions and texts, of every " + (losses ? "other " : "") + "task and length" + models + " (5% level, corrected):"), tests.box);
  if (beside) told.push(make("p", "dim", "Too few for the test, though an interval leaves out zero (" + beside + "): " + LEVAL.board.assumed + "."));
  return told;
}
const WORDS = { better: "better", worse: "worse", same: "not told apart", few: "with too few documents for the test", none: "without an interval" };
// the comparisons of reach losses, all tasks of a method together
function reachParts() {
  const losses = view.compare.reach || {};
  return chosen(LEVAL.board.reach).flatMap((line) => line.points.flatMap((point) => {
    const [apart, low, high] = (losses[line.block + "\n" + line.method] || {})[point[0]] || [];
    if (!known(apart)) return [];
    const kind = !known(low) ? "none" : low * high <= 0 ? "same" : apart < 0 ? "better" : "worse";
    return [{ line, kind, apart, low, high, length: point[0], where: "at " + lengthLabel(point[0]) }];
  }));
}
// those of every other task and length, as the test says
function testParts() {
  const losses = view.compare.reach || {};
  return chosen(LEVAL.board.rows).flatMap((row) => LEVAL.board.columns.flatMap((column) => {
    const found = comparisonOf(row, column);
    if (!found || (/ loss$/.test(column.label) && losses[row.block + "\n" + row.method])) return [];
    const kind = found[4] === "?" ? "few" : found[4] !== "*" ? "same" : (found[0] < 0) === Boolean(column.lower) ? "better" : "worse";
    return [{ line: row, kind, beside: kind === "few" && found[1] * found[2] > 0, where: column.label + " at " + lengthLabel(row.ctx) }];
  }));
}
// a list with an item a method, of several models a method and model
function listed(parts, over, fill) {
  const key = (part) => (over ? "" : part.line.block + "\n") + part.line.method;
  const several = !over && new Set(parts.map((part) => part.line.block)).size > 1;
  const list = unique(parts.map(key)).map((name) => {
    const own = parts.filter((part) => key(part) === name), { method, block } = own[0].line, item = make("li");
    item.append(make("strong", "", method));
    if (several) {
      const where = make("small", "where", block);
      where.title = block;
      item.append(where);
    }
    fill(item, own);
    return item;
  });
  const box = make("ul", "verdict");
  box.append(...shortened(list));
  return box;
}
function byLength() {
  const parts = reachParts();
  return parts.length ? { box: listed(parts, false, (item, own) => item.append(...own.map(drawPart))) } : null;
}
// one length: how much better or worse, which leads to the texts
function drawPart({ line, kind, apart, low, high, length }) {
  const size = Math.abs(apart), told = size < 5e-4 ? "<0.001" : fixed(size, size < 1 ? 3 : 2);
  const says = kind === "none" ? (apart ? fixed(apart, 3) + ", no interval" : "the same") : kind === "same" ? "not told apart" : told + " " + kind;
  const part = make("button", "count " + kind, lengthLabel(length) + ": " + says), open = lossesAt(line, length);
  part.type = "button";
  part.title = (apart > 0 ? "+" : "") + apart + (known(low) ? " (" + low + " to " + high + ")" : "") + " nats a token";
  part.disabled = !open;
  if (open) part.addEventListener("click", open);
  return part;
}
function counts(parts, over) {
  if (!parts.length) return null;
  const box = listed(parts, over, (item, own) => {
    for (const [kind, text] of Object.entries(WORDS)) {
      const those = own.filter((part) => part.kind === kind), n = those.length, { method, block } = own[0].line;
      if (!n) continue;
      const part = make("button", "count " + kind, n + " " + text);
      part.type = "button";
      part.addEventListener("click", () => {  // to the differences that it counts
        by("search").value = method;
        by("show").value = "difference";
        if (!over) by("model").value = block;
        draw();
        by("comparison").scrollIntoView({ block: "start" });
      });
      part.style.flexGrow = n;
      part.title = those.slice(0, 100).map((each) => (over ? named(each.line.block)[0] + " " : "") + each.where).join(", ");
      item.append(part);
    }
    item.dataset.total = own.length;
  });
  return { box, beside: parts.filter((part) => part.beside).length };
}
