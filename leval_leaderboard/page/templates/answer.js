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
function chosen(lines) {
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean), model = by("model").value;
  return lines.filter((line) => (model === "" || line.block === model) && words.every((word) => (line.method + " " + line.block).toLowerCase().includes(word)));
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
  const longest = Math.max(...lines.flatMap((l) => [l.claimed || 0, ...l.points.map((p) => p[0])]));
  const nodes = [];
  lines.forEach((line, at) => {
    if (at === 0 || lines[at - 1].block !== line.block) {
      const [model, settings] = named(line.block), head = make("h3", "", model);
      if (settings) head.append(make("small", "", " " + settings));
      nodes.push(head);
    }
    nodes.push(drawLine(line, longest));
  });
  return [...shortened(nodes), make("p", "dim", "Green: no longer context made the same tokens worse; hatched: the texts cannot tell; the mark: what the config claims. Ends of 95% intervals, by document.")];
}
function drawLine(line, longest) {
  const box = make("div", "reach"), told = make("p");
  told.append(make("strong", "", line.method), " reads ", make("strong", "", line.noLoss), line.noLoss === "cannot tell" ? ": too few texts to say how far without loss" : " without loss", ", and still gains up to ", make("strong", "", line.gain), ".");
  const asked = Math.max(...line.points.map((p) => p[0])), scale = (n) => (100 * n) / longest + "%";
  const track = make("div", "track"), [low, high] = line.noLossEnds || [null, asked];
  const parts = [["asked", asked], ["maybe", high], ["sure", low]].filter(([, end]) => end);
  for (const [name, end] of parts) {
    const bar = make("span", name);
    bar.style.width = scale(end);
    track.append(bar);
  }
  if (line.claimed) {
    const mark = make("span", "claim");
    mark.style.left = "calc(" + scale(line.claimed) + " - 2px)";
    mark.title = "The config claims " + lengthLabel(line.claimed);
    track.append(mark);
  }
  const rests = [line.texts + (line.texts === 1 ? " text" : " texts"), line.tokens.toLocaleString("en") + " tokens at each length" + (line.keys ? ", " + line.keys.toLocaleString("en") + " of them key tokens" : ""), line.tasks.join(", ")];
  if (line.claimed) rests.unshift("config: " + lengthLabel(line.claimed));
  rests.push("asked up to " + lengthLabel(asked));
  box.append(told, track, make("small", "", rests.join(" · ")));
  return box;
}
// against the baseline, over all tasks and lengths: on how many it is better, worse, not told apart
function drawVerdict() {
  if (!view.compare) return [];
  const counts = new Map(), rows = chosen(LEVAL.board.rows);
  const blocks = new Set(rows.map((row) => row.block)).size, over = blocks > MANY;  // then over all models
  for (const row of rows) for (const column of LEVAL.board.columns) {
    const found = comparisonOf(row, column);
    if (!found) continue;
    const key = over ? row.method : row.block + "\n" + row.method;
    if (!counts.has(key)) counts.set(key, { block: row.block, method: row.method, better: [], worse: [], same: [], few: [] });
    const kind = found[4] === "?" ? "few" : found[4] !== "*" ? "same" : (found[0] < 0) === Boolean(column.lower) ? "better" : "worse";
    counts.get(key)[kind].push((over ? named(row.block)[0] + " " : "") + column.label + " at " + lengthLabel(row.ctx));
  }
  if (!counts.size) return [];
  const several = !over && new Set([...counts.values()].map((c) => c.block)).size > 1;
  const words = { better: "better", worse: "worse", same: "not told apart", few: "too few documents to tell" };
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
      const part = make("span", "count " + kind, n + " " + text);
      part.style.flexGrow = n;
      part.title = count[kind].slice(0, 100).join(", ");
      item.append(part);
    }
    item.dataset.total = total;
    return item;
  });
  const box = make("ul", "verdict");
  box.append(...shortened(list));
  return [make("p", "", "Against " + view.baseline + ", on the same questions and texts, of every task and length" + (over ? " of " + blocks + " models and settings" : "") + " (5% level, corrected):"), box];
}
