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
  if (!lines.length) return LEVAL.board.reach.length ? [make("p", "dim", "Reach was not asked of these.")] : [];
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
  return [...shortened(nodes), make("p", "dim", "Green: no longer context made it worse; hatched: so few texts or probes cannot tell; the mark: what the config claims. Ends of 95% intervals.")];
}
function drawLine(line, longest) {
  const box = make("div", "reach"), found = line.retrieval;
  const asked = Math.max(...askedOf(line)), rests = ["asked up to " + lengthLabel(asked)];
  if (line.claimed) rests.unshift("config: " + lengthLabel(line.claimed));
  if (line.texts) {
    const told = make("p");
    const [reads, gains] = [line.noLoss, line.gain].map((text) => text !== "cannot tell");
    const loss = leading(line, line.noLoss, line.noLossEnds), gain = leading(line, line.gain, line.gainEnds);
    told.append(make("strong", "", line.method));
    if (reads) told.append(" reads ", loss, " without loss");
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
    if (found.kept !== "–") said.push([" retrieves as at its shortest length ", found.kept]);
    said.push([" retrieves " + percent + " or more ", found.above === "nowhere" ? "at no length that was asked" : found.above]);
    said.forEach(([what, text], at) => {
      const unknown = text === "cannot tell";
      told.append((at ? ";" : "") + what + (unknown ? "up to a length that so few probes " : text.startsWith("at no") ? "" : "up to "), make("strong", "", text));
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
// a length, which leads to the texts whose losses there say so
function leading(line, text, ends) {
  const length = ends ? ends[0] ?? ends[1] : null, found = lossAt(line.block, line.method, length);
  if (!found) return make("strong", "", text);
  const button = make("button", "plain", text);
  button.type = "button";
  button.setAttribute("aria-label", text + ": the texts at " + lengthLabel(length));
  button.addEventListener("click", () => openDetail(...found));
  return button;
}
function lossAt(block, method, length) {
  const row = LEVAL.board.rows.find((r) => r.block === block && r.method === method && r.ctx === length);
  const column = row && LEVAL.board.columns.find((c) => / loss$/.test(c.label) && row.cells[c.at] && row.cells[c.at].v !== undefined);
  return column ? [row, column] : null;
}
// against the baseline, over all tasks and lengths: on how many it is better, worse, not told apart
function drawVerdict() {
  if (!view.compare) return [];
  let beside = 0;
  const counts = new Map(), rows = chosen(LEVAL.board.rows);
  const blocks = new Set(rows.map((row) => row.block)).size, over = blocks > MANY;  // then over all models
  for (const row of rows) for (const column of LEVAL.board.columns) {
    const found = comparisonOf(row, column);
    if (!found) continue;
    const key = over ? row.method : row.block + "\n" + row.method;
    if (!counts.has(key)) counts.set(key, { block: row.block, method: row.method, better: [], worse: [], same: [], few: [] });
    const kind = found[4] === "?" ? "few" : found[4] !== "*" ? "same" : (found[0] < 0) === Boolean(column.lower) ? "better" : "worse";
    if (kind === "few" && found[1] * found[2] > 0) beside += 1;
    counts.get(key)[kind].push((over ? named(row.block)[0] + " " : "") + column.label + " at " + lengthLabel(row.ctx));
  }
  if (!counts.size) return [];
  const several = !over && new Set([...counts.values()].map((c) => c.block)).size > 1;
  const words = { better: "better", worse: "worse", same: "not told apart", few: "too few documents for the test" };
  const list = [...counts.values()].map((count) => {
    const item = make("li"), total = Object.keys(words).reduce((n, kind) => n + count[kind].length, 0);
    item.append(make("strong", "", count.method));
    if (several) {
      const where = make("small", "where", count.block);
      where.title = count.block;
      item.append(where);
    }
    for (const [kind, text] of Object.entries(words)) {
      const n = count[kind].length;
      if (!n) continue;
      const part = make("button", "count " + kind, n + " " + text);
      part.type = "button";
      part.addEventListener("click", () => {  // to the differences that it counts
        by("search").value = count.method;
        by("show").value = "difference";
        if (!over) by("model").value = count.block;
        draw();
        by("comparison").scrollIntoView({ block: "start" });
      });
      part.style.flexGrow = n;
      part.title = count[kind].slice(0, 100).join(", ");
      item.append(part);
    }
    item.dataset.total = total;
    return item;
  });
  const box = make("ul", "verdict");
  box.append(...shortened(list));
  const why = beside ? [make("p", "dim", "Too few for the test, though an interval leaves out zero (" + beside + "): " + LEVAL.board.assumed + ".")] : [];
  return [make("p", "", "Against " + view.baseline + ", on the same questions and texts, of every task and length" + (over ? " of " + blocks + " models and settings" : "") + " (5% level, corrected):"), box, ...why];
}
