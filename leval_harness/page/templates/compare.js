"use strict";
// The drill-down: where a number comes from, and every question or text behind it, of one method or of two.
const QUESTIONS = 20;
const pair = { row: null, column: null, other: null, shown: QUESTIONS, items: [] };
// what an answer may be besides right and wrong, in words
const KINDS = { un: "in which no answer was found", cut: "whose document was truncated", lim: "that hit the maximum of tokens", open: "cut while thinking" };

function startCompare() {
  by("other").addEventListener("change", () => loadPair(by("which").value));
  by("which").addEventListener("change", () => { pair.shown = QUESTIONS; drawQuestions(); });
  by("compare-controls").addEventListener("submit", (event) => event.preventDefault());
  by("more-questions").addEventListener("click", () => { pair.shown += QUESTIONS; drawQuestions(); });
}

// a number that is made of several, to the samples of each: `parts` are `[row, column, text]`; `how`
// as of `openDetail`, but that nobody stands beside them where it does not say so
function openParts(title, parts, how) {
  how = { other: null, ...how };
  if (parts.length === 1) return openDetail(parts[0][0], parts[0][1], how);
  const list = make("dl");
  for (const [row, column, text] of parts) {
    const value = make("dd");
    value.append(leadingTo(column.label, row, text, "plain", () => openDetail(row, column, how)));
    list.append(make("dt", "", column.label), value);
  }
  pair.row = null;
  showDetail(title, list);
  remember();
}
function showDetail(title, facts) {
  by("detail").hidden = false;
  by("detail-title").textContent = title;
  by("facts").replaceChildren(facts);
  by("made").hidden = by("compare").hidden = !pair.row;
  by("detail-title").focus();
  by("detail").scrollIntoView({ block: "start" });
}
// `other` null is this method alone, undefined whoever is usual; `which` of the questions
async function openDetail(row, column, { other, which } = {}) {
  Object.assign(pair, { row, column, other: null });
  const cell = row.cells[column.at];
  showDetail(titled(row.method) + " · " + column.label + " · " + lengthLabel(row.ctx), factsOf(row, column, cell));
  const provenance = by("provenance");
  provenance.replaceChildren();
  for (const [name, value] of Object.entries(LEVAL.board.runs[cell.run] || {}))
    provenance.append(make("dt", "", name), make("dd", "", value));
  const rivals = LEVAL.board.rows.filter((r) => r !== row && !r.published && samplesOf(r));
  const near = (r) => (r.block === row.block ? 0 : 2) + (r.ctx === row.ctx ? 0 : 1);
  rivals.sort((a, b) => near(a) - near(b) || a.at - b.at);
  const logged = Boolean(samplesOf(row));
  by("compare").hidden = !logged;
  by("compare-title").textContent = cell.unit ? "Text by text" : "Question by question";
  if (logged) {
    const usual = other !== undefined ? other : rivals.find((r) => r.method === view.baseline && near(r) === 0) || rivals.find((r) => near(r) === 0);
    fill(by("other"), [["", "(this method alone)"], ...rivals.slice(0, 500).map((r) => [String(r.at), titled(r.method) + " · " + lengthLabel(r.ctx) + (r.block === row.block ? "" : " · " + r.block)])], usual ? String(usual.at) : "");
    await loadPair(which);
  }
  remember();
}
function samplesOf(row) {
  const cell = row.cells[pair.column.at];
  return cell && cell.v !== undefined && LEVAL.board.samples[cell.run + " " + pair.column.task];
}
function counted(n, noun) {
  return n + " " + noun + (n === 1 ? "" : "s");
}
function factsOf(row, column, cell) {
  const list = make("dl"), digits = column.raw ? 3 : 2, unit = column.raw ? "" : "%";
  const say = (name, value) => list.append(make("dt", "", name), make("dd", "", value));
  const ends = (low, high) => fixed(low, digits) + " to " + fixed(high, digits);
  say("Model and setting", row.block);
  say("Value", cell.t + unit + (cell.lo === undefined ? "" : "; 95% interval " + ends(cell.lo, cell.hi)));
  if (cell.n) say("Asked", counted(cell.n, column.nats ? "sample" : "question") + (cell.g ? ", " + counted(cell.g, "document") : ""));
  if (column.chance !== null && !column.raw) say("Chance", (100 * column.chance).toFixed(1) + "%");
  if (cell.cut !== undefined) say("Truncated", fixed(cell.cut, 1) + "% of the questions had their document shortened");
  if (cell.un !== undefined) say("No answer found", fixed(cell.un, 1) + "% of the answers");
  if (cell.lim !== undefined) say("Hit max tokens", fixed(cell.lim, 1) + "% of the answers were ended by the generation limit");
  if (cell.ends) say("Thinking cut", fixed(cell.open, 1) + "% of the answers; the score if all of them were wrong and if all were right: " + ends(...cell.ends));
  if (cell.data) say("Documents", cell.data + " (source, and a fingerprint of the files’ SHA-256)");
  const c = comparisonOf(row, column);
  if (c) {
    const per = column.nats ? " " + cell.unit : column.raw ? "" : " points";
    say("Against " + titled(view.baseline), signed(c[0], column) + per + (c[1] === null ? "" : " (" + ends(c[1], c[2]) + ", corrected level)") + "; p " + (c[3] < 0.001 ? "< 0.001" : "= " + c[3].toFixed(3)) + " (Holm)");
    say("Win / tie / loss", c[5] + " / " + c[6] + " / " + c[7]);
    if (c[8] !== null) say("Detectable", "a true difference of about " + c[8] + per + " would be found in 80% of such sets");
    if (c[4] === "?") say("Inconclusive", "the smallest p that " + counted(cell.g, "document") + " can give is " + c[9] + ", the threshold is " + c[10] + (c[1] * c[2] > 0 ? "; the interval leaves out zero all the same: " + LEVAL.board.assumed : ""));
  }
  return list;
}
async function loadPair(which) {
  const other = by("other").value === "" ? null : LEVAL.board.rows[Number(by("other").value)], row = pair.row;
  const mine = samplesOf(row), theirs = other && samplesOf(other);
  pair.other = other;
  by("compare-status").textContent = "Loading…";
  by("questions").replaceChildren();
  try {
    const [questions, a, b] = await Promise.all([mine.q, mine.a, ...(other ? [theirs.a] : [])].map(LEVAL.load));
    const own = answersOf(a, row), others = other && answersOf(b, other);
    pair.items = Object.keys(questions).filter((key) => key in own && (!other || key in others))
      .map((key) => ({ key, question: questions[key], a: worth(own[key], row), b: other && worth(others[key], other) }));
    for (const item of pair.items) item.by = other ? better(item.a.score, item.b.score) : 0;
    pair.shown = QUESTIONS;
    fillWhich(which);
    drawQuestions();
  } catch (error) {
    by("compare-status").textContent = "The samples could not be loaded: " + error.message;
  }
}
// which questions are shown: those that differ, those of one kind, all
function fillWhich(wanted) {
  const found = pair.column.nats ? [] : pair.items.map((item) => item.a.answer);
  const versus = found.length && pair.other;
  const options = versus ? [["differ", "where they differ"], ["win", "only this method is better"], ["loss", "only the other is better"]] : [];
  for (const [kind, words] of Object.entries(KINDS)) if (found.some((answer) => answer[kind])) options.push([kind, words]);
  for (const part of unique(found.flatMap((answer) => answer.parts || [])).sort((a, b) => a - b)) options.push(["part-" + part, "needle at " + partLabel(part, "")]);
  options.push(["all", "all"]);
  fill(by("which"), options, options.some(([kind]) => kind === wanted) ? wanted : versus ? "differ" : "all");
  by("which").parentElement.hidden = options.length < 2;
}
function isShown(item, which) {
  if (which in KINDS) return Boolean(item.a.answer[which]);
  if (which.startsWith("part-")) return (item.a.answer.parts || []).includes(Number(which.slice(5)));
  return which === "all" || (which === "win" ? item.by > 0 : which === "loss" ? item.by < 0 : item.by !== 0);
}
function partLabel(part, of = " of the prompt") {
  return (100 * part) / LEVAL.board.parts + "% to " + (100 * (part + 1)) / LEVAL.board.parts + "%" + of;
}
// the answers under the filter that the number is of
function answersOf(answers, row) {
  return answers[row.cells[pair.column.at].f] || Object.values(answers)[0] || {};
}
// an answer with its score by the metric that the number is of; of a text nats over tokens
function worth(answer, row) {
  const [top, bottom] = (answer.m || {})[row.cells[pair.column.at].m] || [null, null];
  return { answer, tokens: bottom, score: known(top) && bottom ? top / bottom : null };
}
// whether one score is better than another: 1, 0 or -1; a difference in the last digits is none
function better(one, other) {
  if (!known(one) || !known(other) || Math.abs(one - other) <= 1e-6 * Math.max(Math.abs(one), Math.abs(other))) return 0;
  return Math.sign(one - other) * (pair.column.lower ? -1 : 1);
}
function drawQuestions() {
  const items = pair.items, noun = pair.column.nats ? "text" : "question";
  const which = by("which").value;
  const wins = items.filter((i) => i.by > 0).length, losses = items.filter((i) => i.by < 0).length;
  const chosen = items.filter((item) => isShown(item, which));
  by("compare-status").textContent = counted(items.length, (pair.other ? "common " : "") + noun) +
    (pair.other && items.some((i) => known(i.a.score)) ? ": " + wins + " won, " + (items.length - wins - losses) + " tied, " + losses + " lost" : "") + ". " +
    Math.min(pair.shown, chosen.length) + " of " + chosen.length + " shown.";
  const shown = chosen.slice(0, pair.shown);
  by("questions").replaceChildren(...(noun === "text" ? [drawTexts(shown)] : shown.map(drawQuestion)));
  by("more-questions").hidden = chosen.length <= pair.shown;
  remember();
}
function drawTexts(items) {
  const box = make("div", "texts"), other = pair.other, { unit } = pair.row.cells[pair.column.at];
  const line = (...cells) => cells.forEach((text, at) => box.append(make("span", at ? "number" : "", text)));
  box.style.gridTemplateColumns = "minmax(0,1fr) repeat(" + (other ? 4 : 2) + ", max-content)";
  const name = (row) => (other.method === pair.row.method ? lengthLabel(row.ctx) : titled(row.method));
  const what = unit.startsWith("nats/") ? unit.slice(5).split(",")[0] + "s" : "Tokens";
  line("Text", what[0].toUpperCase() + what.slice(1), ...(other ? [name(pair.row), name(other), "Difference"] : [unit]));
  const digits = (n) => (known(n) ? n.toFixed(3) : "–");
  for (const { question, a, b } of items)
    line(question[2], known(a.tokens) ? String(a.tokens) : "–", digits(a.score), ...(b ? [digits(b.score), known(a.score) && known(b.score) ? digits(a.score - b.score) : "–"] : []));
  return box;
}
function drawQuestion(item) {
  const [question, gold, documentId] = item.question;
  const box = make("article", "question");
  box.append(make("small", "", "Document " + documentId), make("p", "", question || "(the question's text was not logged)"));
  const expected = make("p");
  if (gold) expected.append(make("span", "dim", "Expected: "), make("strong", "", gold));
  const answers = make("div", "answers");
  answers.append(drawAnswerOf(pair.row, item.a));
  if (item.b) answers.append(drawAnswerOf(pair.other, item.b));
  box.append(expected, answers);
  return box;
}
function drawAnswerOf(row, { answer, score }) {
  const box = make("div"), share = !pair.column.raw, [tokens, head, tail] = answer.doc || [];
  box.append(make("strong", "", titled(row.method) + " "));
  const shown = known(score) ? String(+score.toPrecision(4)) : "";
  const word = answer.un ? "no answer found" : !shown ? "not scored by itself" : !share ? "" : score === 1 ? "right" : score ? "partly right" : "wrong";
  box.append(make("span", !shown || !share ? "dim" : score ? "right" : "wrong", word && shown ? word + " (" + shown + ")" : word || row.cells[pair.column.at].m + " " + shown));
  if (answer.open) box.append(make("span", "tag", "cut while thinking"));
  else if (answer.lim) box.append(make("span", "tag", "hit max tokens"));
  if (answer.c) {
    box.append(make("div", "dim", answer.c.length > 1 ? "Log-likelihood of each choice:" : "Log-likelihood of the expected answer:"));
    for (const [text, likelihood] of answer.c) box.append(make("pre", "", fixed(likelihood, 2) + "  " + text));
  } else if (answer.t || answer.r) {
    box.append(make("div", "dim", "Read as: " + (answer.r || "–")));
    box.append(make("pre", "", answer.t || ""));
  }
  if (known(tokens)) {
    box.append(make("div", "dim", answer.cut ? "Document cut: first " + head + " and last " + tail + " of " + tokens + " tokens kept" : "Whole document read (" + tokens + " tokens)"));
    if (answer.cut && tokens > 0) {
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
