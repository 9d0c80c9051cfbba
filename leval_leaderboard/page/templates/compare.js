"use strict";
// The drill-down: where a number comes from, and every question or text behind it, of one method or of two.
const QUESTIONS = 20;
const pair = { row: null, column: null, other: null, shown: QUESTIONS, items: [] };

function startCompare() {
  by("other").addEventListener("change", loadPair);
  by("which").addEventListener("change", () => { pair.shown = QUESTIONS; drawQuestions(); });
  by("compare-controls").addEventListener("submit", (event) => event.preventDefault());
  by("more-questions").addEventListener("click", () => { pair.shown += QUESTIONS; drawQuestions(); });
}

async function openDetail(row, column, other) {
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
  const rivals = LEVAL.board.rows.filter((r) => r !== row && !r.published && samplesOf(r));
  const near = (r) => (r.block === row.block ? 0 : 2) + (r.ctx === row.ctx ? 0 : 1);
  rivals.sort((a, b) => near(a) - near(b) || a.at - b.at);
  const known = Boolean(samplesOf(row));
  by("compare").hidden = !known;
  by("compare-title").textContent = cell.m ? "Text by text" : "Question by question";
  if (known) {
    const usual = other || rivals.find((r) => r.method === view.baseline && near(r) === 0) || rivals.find((r) => near(r) === 0);
    fill(by("other"), [["", "(this method alone)"], ...rivals.slice(0, 500).map((r) => [String(r.at), r.method + " · " + lengthLabel(r.ctx) + (r.block === row.block ? "" : " · " + r.block)])], usual ? String(usual.at) : "");
    await loadPair();
  }
  by("detail-title").focus();
  by("detail").scrollIntoView({ block: "start" });
  remember();
}
function samplesOf(row) {
  const cell = row.cells[pair.column.at];
  return cell && cell.v !== undefined && LEVAL.board.samples[cell.run + " " + pair.column.task];
}
function counted(n, noun) {
  return n + " " + noun + (n === 1 ? "" : "s");
}
function drawFacts(row, column, cell) {
  const list = make("dl"), digits = column.raw ? 3 : 2, unit = column.raw ? "" : "%";
  const say = (name, value) => list.append(make("dt", "", name), make("dd", "", value));
  const ends = (low, high) => fixed(low, digits) + " to " + fixed(high, digits);
  say("Model and setting", row.block);
  say("Value", cell.t + unit + (cell.lo === undefined ? "" : "; 95% interval " + ends(cell.lo, cell.hi)));
  if (cell.n) say("Asked", counted(cell.n, column.nats ? "sample" : "question") + (cell.g ? ", " + counted(cell.g, "document") : ""));
  if (column.chance !== null && !column.raw) say("Chance", (100 * column.chance).toFixed(1) + "%");
  if (cell.cut !== undefined) say("Cut", fixed(cell.cut, 1) + "% of the questions had their document shortened");
  if (cell.un !== undefined) say("Unparsed", fixed(cell.un, 1) + "% of the answers");
  if (cell.lim !== undefined) say("At limit", fixed(cell.lim, 1) + "% of the answers were ended by the generation limit");
  if (cell.ends) say("Thinking cut", fixed(cell.open, 1) + "% of the answers; the score if all of them were wrong and if all were right: " + ends(...cell.ends));
  if (cell.data) say("Documents", cell.data + " (source, and a fingerprint of the files’ SHA-256)");
  const c = comparisonOf(row, column);
  if (c) {
    const per = column.nats ? " nats a token" : column.raw ? "" : " points";
    say("Against " + view.baseline, signed(c[0], column) + per + (c[1] === null ? "" : " (" + ends(c[1], c[2]) + ", corrected level)") + "; p " + (c[3] < 0.001 ? "< 0.001" : "= " + c[3].toFixed(3)) + " (Holm)");
    say("Win / tie / loss", c[5] + " / " + c[6] + " / " + c[7]);
    if (c[8] !== null) say("Detectable", "a true difference of about " + c[8] + per + " would be found in 80% of such sets");
    if (c[4] === "?") say("Cannot tell", "the smallest p that " + counted(cell.g, "document") + " can give is " + c[9] + ", the threshold is " + c[10] + (c[1] * c[2] > 0 ? "; the interval leaves out zero all the same: " + LEVAL.board.assumed : ""));
  }
  by("facts").replaceChildren(list);
}
async function loadPair() {
  const other = by("other").value === "" ? null : LEVAL.board.rows[Number(by("other").value)], row = pair.row;
  const mine = samplesOf(row), theirs = other && samplesOf(other);
  pair.other = other;
  by("which").parentElement.hidden = !other || Boolean(row.cells[pair.column.at].m);
  by("compare-status").textContent = "Loading…";
  by("questions").replaceChildren();
  try {
    const [questions, a, b] = await Promise.all([mine.q, mine.a, ...(other ? [theirs.a] : [])].map(LEVAL.load));
    pair.items = Object.keys(questions).filter((key) => key in a && (!other || key in b))
      .map((key) => ({ key, question: questions[key], a: worth(a[key], row), b: other && worth(b[key], other) }));
    for (const item of pair.items) item.by = other ? (item.a.score - item.b.score) * (pair.column.lower ? -1 : 1) || 0 : 0;
    pair.shown = QUESTIONS;
    drawQuestions();
  } catch (error) {
    by("compare-status").textContent = "The samples could not be loaded: " + error.message;
  }
}
// an answer with its score; of a text nats a token by the metric that the number is of
function worth(answer, row) {
  if (Array.isArray(answer)) return { answer, score: answer[2] || 0 };
  const [nats, tokens] = answer[row.cells[pair.column.at].m] || [null, null];
  return { nats, tokens, score: tokens ? nats / tokens : NaN };
}
function drawQuestions() {
  const items = pair.items, noun = items.length && items[0].a.answer ? "question" : "text";
  const which = pair.other && noun === "question" ? by("which").value : "all";
  const wins = items.filter((i) => i.by > 0).length, losses = items.filter((i) => i.by < 0).length;
  const chosen = items.filter((i) => which === "all" || (which === "win" ? i.by > 0 : which === "loss" ? i.by < 0 : i.by !== 0));
  by("compare-status").textContent = counted(items.length, (pair.other ? "common " : "") + noun) +
    (pair.other ? ": " + wins + " won, " + (items.length - wins - losses) + " tied, " + losses + " lost" : "") + ". " +
    Math.min(pair.shown, chosen.length) + " of " + chosen.length + " shown.";
  const shown = chosen.slice(0, pair.shown);
  by("questions").replaceChildren(...(noun === "text" ? [drawTexts(shown)] : shown.map(drawQuestion)));
  by("more-questions").hidden = chosen.length <= pair.shown;
  remember();
}
function drawTexts(items) {
  const box = make("div", "texts"), other = pair.other;
  const line = (...cells) => cells.forEach((text, at) => box.append(make("span", at ? "number" : "", text)));
  box.style.gridTemplateColumns = "minmax(0,1fr) repeat(" + (other ? 4 : 2) + ", max-content)";
  line("Text", "Tokens", ...(other ? [pair.row.method, other.method, "Difference"] : ["Nats a token"]));
  const digits = (n) => (Number.isFinite(n) ? n.toFixed(3) : "–");
  for (const { question, a, b } of items)
    line(question[2], a.tokens === null ? "–" : String(a.tokens), digits(a.score), ...(b ? [digits(b.score), digits(a.score - b.score)] : []));
  return box;
}
function drawQuestion(item) {
  const [question, gold, documentId] = item.question;
  const box = make("article", "question");
  box.append(make("small", "", "Document " + documentId), make("p", "", question || "(the question's text was not logged)"));
  const expected = make("p");
  expected.append(make("span", "dim", "Expected: "), make("strong", "", gold));
  const answers = make("div", "answers");
  answers.append(drawAnswerOf(pair.row, item.a.answer));
  if (item.b) answers.append(drawAnswerOf(pair.other, item.b.answer));
  box.append(expected, answers);
  return box;
}
function drawAnswerOf(row, [text, extracted, score, unparsed, cut, tokens, head, tail, ended, thinking]) {
  const box = make("div");
  box.append(make("strong", "", row.method + " "));
  const word = unparsed ? "unparsed" : score === 1 ? "right" : score ? "partly right" : "wrong";
  box.append(make("span", score ? "right" : "wrong", word + (score === null ? "" : " (" + score + ")")));
  if (thinking) box.append(make("span", "tag", "cut while thinking"));
  else if (ended) box.append(make("span", "tag", "at the limit"));
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
