"use strict";
// The drill-down: where a number comes from, and the questions on which two methods differ.
const QUESTIONS = 20;
const pair = { row: null, column: null, shown: QUESTIONS, items: [] };

function startCompare() {
  by("other").addEventListener("change", loadPair);
  by("which").addEventListener("change", () => { pair.shown = QUESTIONS; drawQuestions(); });
  by("compare-controls").addEventListener("submit", (event) => event.preventDefault());
  by("more-questions").addEventListener("click", () => { pair.shown += QUESTIONS; drawQuestions(); });
}

function openDetail(row, column) {
  pair.row = row;
  pair.column = column;
  const cell = row.cells[column.at];
  by("detail").hidden = false;
  by("detail-title").textContent = row.method + " · " + column.label + " · " + lengthLabel(row.ctx);
  drawFacts(row, column, cell);
  const provenance = by("provenance");
  provenance.replaceChildren();
  for (const [name, value] of Object.entries(LEVAL.board.runs[cell.run] || {}))
    provenance.append(make("dt", "", name), make("dd", "", value));
  const rivals = LEVAL.board.rows.filter((r) => r !== row && !r.published && r.cells[column.at] && samplesOf(r));
  const near = (r) => (r.block === row.block ? 0 : 2) + (r.ctx === row.ctx ? 0 : 1);
  rivals.sort((a, b) => near(a) - near(b) || a.at - b.at);
  const known = samplesOf(row) && rivals.length > 0;
  by("compare").hidden = !known;
  if (known) {
    const usual = rivals.find((r) => r.method === view.baseline && near(r) === 0) || rivals[0];
    fill(by("other"), rivals.slice(0, 500).map((r) => [String(r.at), r.method + " · " + lengthLabel(r.ctx) + (r.block === row.block ? "" : " · " + r.block)]), String(usual.at));
    loadPair();
  }
  by("detail-title").focus();
  by("detail").scrollIntoView({ block: "start" });
}
function samplesOf(row) {
  const cell = row.cells[pair.column.at];
  return cell && LEVAL.board.samples[cell.run + " " + pair.column.task];
}
function counted(n, noun) {
  return n + " " + noun + (n === 1 ? "" : "s");
}
function drawFacts(row, column, cell) {
  const list = make("dl"), digits = column.raw ? 3 : 2, unit = column.raw ? "" : "%";
  const say = (name, value) => list.append(make("dt", "", name), make("dd", "", value));
  say("Model and setting", row.block);
  say("Value", cell.v.toFixed(digits) + unit + (cell.lo === undefined ? "" : "; 95% interval " + cell.lo.toFixed(digits) + " to " + cell.hi.toFixed(digits)));
  if (cell.n) say("Asked", counted(cell.n, column.nats ? "sample" : "question") + (cell.g ? ", " + counted(cell.g, "document") : ""));
  if (column.chance !== null && !column.raw) say("Chance", (100 * column.chance).toFixed(1) + "%");
  if (cell.cut !== undefined) say("Cut", cell.cut.toFixed(1) + "% of the questions had their document shortened");
  if (cell.un !== undefined) say("Unparsed", cell.un.toFixed(1) + "% of the answers");
  if (cell.data) say("Documents", cell.data + " (source, and a fingerprint of the files’ SHA-256)");
  const c = comparisonOf(cell, column);
  if (c) {
    const per = column.nats ? " nats a token" : column.raw ? "" : " points";
    say("Against " + view.baseline, (c[0] > 0 ? "+" : "") + c[0].toFixed(digits) + per + (c[1] === null ? "" : " (" + c[1].toFixed(digits) + " to " + c[2].toFixed(digits) + ", corrected level)") + "; p " + (c[3] < 0.001 ? "< 0.001" : "= " + c[3].toFixed(3)) + " (Holm)");
    say("Win / tie / loss", c[5] + " / " + c[6] + " / " + c[7]);
    if (c[8] !== null) say("Detectable", "a true difference of about " + c[8] + per + " would be found in 80% of such sets");
    if (c[4] === "?") say("Cannot tell", "the smallest p that " + counted(cell.g, "document") + " can give is " + c[9] + ", the threshold is " + c[10]);
  }
  by("facts").replaceChildren(list);
}
async function loadPair() {
  const other = LEVAL.board.rows[Number(by("other").value)], row = pair.row;
  const mine = samplesOf(row), theirs = samplesOf(other);
  by("compare-status").textContent = "Loading…";
  by("questions").replaceChildren();
  try {
    const [questions, a, b] = await Promise.all([mine.q, mine.a, theirs.a].map(LEVAL.load));
    pair.items = Object.keys(questions).filter((key) => key in a && key in b)
      .map((key) => ({ key, question: questions[key], a: a[key], b: b[key], by: (a[key][2] || 0) - (b[key][2] || 0) }));
    pair.other = other;
    pair.shown = QUESTIONS;
    drawQuestions();
  } catch (error) {
    by("compare-status").textContent = "The samples could not be loaded: " + error.message;
  }
}
function drawQuestions() {
  const which = by("which").value, items = pair.items;
  const wins = items.filter((i) => i.by > 0).length, losses = items.filter((i) => i.by < 0).length;
  const chosen = items.filter((i) => which === "all" || (which === "win" ? i.by > 0 : which === "loss" ? i.by < 0 : i.by !== 0));
  by("compare-status").textContent = items.length + " common question" + (items.length === 1 ? "" : "s") + ": " + wins + " won, " +
    (items.length - wins - losses) + " tied, " + losses + " lost. " + Math.min(pair.shown, chosen.length) + " of " + chosen.length + " shown.";
  by("questions").replaceChildren(...chosen.slice(0, pair.shown).map(drawQuestion));
  by("more-questions").hidden = chosen.length <= pair.shown;
}
function drawQuestion(item) {
  const [question, gold, documentId] = item.question;
  const box = make("article", "question");
  box.append(make("small", "", "Document " + documentId), make("p", "", question || "(the question's text was not logged)"));
  const expected = make("p");
  expected.append(make("span", "dim", "Expected: "), make("strong", "", gold));
  const answers = make("div", "answers");
  answers.append(drawAnswer(pair.row, item.a), drawAnswer(pair.other, item.b));
  box.append(expected, answers);
  return box;
}
function drawAnswer(row, [text, extracted, score, unparsed, cut, tokens, head, tail]) {
  const box = make("div");
  box.append(make("strong", "", row.method + " "));
  const word = unparsed ? "unparsed" : score === 1 ? "right" : score ? "partly right" : "wrong";
  box.append(make("span", score ? "right" : "wrong", word + (score === null ? "" : " (" + score + ")")));
  box.append(make("div", "dim", "Read as: " + (extracted || "–")));
  box.append(make("pre", "", text));
  if (tokens !== null) {
    box.append(make("div", "dim", cut ? "Document cut: first " + head + " and last " + tail + " of " + tokens + " tokens kept" : "Whole document read (" + tokens + " tokens)"));
    if (cut && tokens > 0) {
      const bar = make("div", "cutbar");
      for (const [size, name] of [[head, ""], [tokens - head - tail, "gone"], [tail, ""]]) {
        const part = make("span", name);
        part.style.width = Math.max(0, 100 * size / tokens) + "%";
        bar.append(part);
      }
      box.append(bar);
    }
  }
  return box;
}
