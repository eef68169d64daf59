// SPDX-License-Identifier: Apache-2.0
"use strict";

const main = document.getElementById("main");
const search = { overview: "", taps: "" };
const shown = { outcomes: new Set(), verb: "", onlyFailed: false, onlyChanges: false };
let data;           // what report_html.cpp packed
let here = -1;      // index of the marked row in `rows`
let rows = [];      // of the overview: [case index, <tr>]

/// An element with attributes and children; text is text, never markup.
function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {}))
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(key, value === true ? "" : value);
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return element;
}

/// Three significant digits; small and large ones with an exponent.
const number = value => value === null ? "" : typeof value === "string" ? value : value === 0 ? "0"
  : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4 ? value.toExponential(2) : value.toPrecision(3);
const ratioOf = (observed, allowed) => {
  if (observed === null || allowed === null) return null;
  const o = Number(observed === "inf" ? Infinity : observed), a = Number(allowed);
  return o === 0 ? 0 : o / a;
};
/// The page's content: what is null is left out.
const show = (...parts) => main.replaceChildren(...parts.flat(Infinity).filter(part => part !== null && part !== ""));
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const badge = (outcome, text) => el("span", { class: `badge ${outcome}` }, text || outcome);
const verdictOf = one => one.outcome === "passed" && one.expected ? "fails as expected" : one.outcome;

/// "17 %" of the limit, "12.3 times" it; "over" where that is no number.
const shareOf = ratio => {
  const percent = 100 * ratio;
  if (!Number.isFinite(ratio)) return "over";
  if (ratio >= 10) return `${number(ratio)} times`;
  return `${percent >= 10 ? Math.floor(percent) : percent === 0 ? 0 : percent < 0.01 ? "< 0.01" : percent.toPrecision(2)} %`;
};

function bar(observed, allowed) {
  const ratio = ratioOf(observed, allowed);
  if (ratio === null) return "";
  // Six decades, so that what is far below its bound still differs from nothing.
  const width = ratio === 0 ? 0 : Math.max(2, Math.min(100, 100 + Math.log10(ratio) * 100 / 6));
  const fill = el("i");
  fill.style.width = `${Number.isNaN(ratio) ? 100 : width}%`;
  return [el("span", { class: `bar${ratio <= 1 ? "" : " over"}`, title: barWords }, fill), " ", el("span", { class: "share" }, shareOf(ratio))];
}
const barWords = "observed / allowed; the bar has a logarithmic scale: full at the limit, half full at a thousandth of it";
const barHead = () => el("th", { scope: "col", title: barWords }, "of limit (log bar)");

// ---- overview

function matches(one) {
  if (shown.outcomes.size && !shown.outcomes.has(one.expected && one.outcome === "passed" ? "expected" : one.outcome)) return false;
  if (shown.verb && data.runs[one.run].verb !== shown.verb) return false;
  const words = search.overview.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${one.name} ${one.file} ${one.outcome} ${one.problems.map(p => `${p.rule} ${p.place} ${p.message}`).join(" ")}`.toLowerCase();
  return words.every(word => text.includes(word));
}

function caseRow(one, index) {
  const first = one.problems.find(p => !p.known) || one.problems[0];
  const row = el("tr", { "data-case": index, onclick: event => { if (event.target.tagName !== "A") location.hash = `#/case/${index}`; } },
    el("td", {}, badge(one.outcome, verdictOf(one))),
    el("td", { class: "verb" }, data.runs[one.run].verb || "unknown"),
    el("td", { class: "name" }, el("a", { href: `#/case/${index}` }, one.name), one.file && !one.name.startsWith(one.file) ? el("div", { class: "quiet" }, one.file) : null),
    el("td", { class: "number" }, number(one.observed)),
    el("td", { class: "number" }, number(one.allowed)),
    el("td", {}, bar(one.observed, one.allowed)),
    el("td", { class: "why" }, one.outcome === "passed" ? (one.expected ? one.detail : "") : first ? `[${first.rule}] ${first.message}` : one.detail));
  return row;
}

function fillRows(body, counter) {
  body.replaceChildren();
  rows = [];
  const rank = one => ["failed", "error", "known", "passed"].indexOf(one.outcome);
  const order = data.cases.map((unused, index) => index).sort((a, b) => rank(data.cases[a]) - rank(data.cases[b]) || a - b);
  order.forEach(index => {
    const one = data.cases[index];
    if (!matches(one)) return;
    const row = caseRow(one, index);
    rows.push([index, row]);
    body.append(row);
  });
  here = -1;
  counter.textContent = rows.length === data.cases.length ? plural(rows.length, "configuration") : `${rows.length} of ${plural(data.cases.length, "configuration")}`;
}

function tiles() {
  return data.runs.map(run => {
    const strip = el("div", { class: "tiles" });
    const isOne = run.end - run.first === 1;
    for (let i = run.first; i < run.end; ++i) {
      const one = data.cases[i];
      strip.append(el("a", { href: `#/case/${i}`, class: one.expected && one.outcome === "passed" ? "expected" : one.outcome, title: `${one.name}: ${verdictOf(one)}`, tabindex: -1, "aria-label": `${one.name}: ${verdictOf(one)}` }),
        isOne ? el("span", { class: "quiet" }, one.name) : "");
    }
    return el("section", { class: "run" }, el("div", {}, el("strong", {}, run.verb || "unknown"), isOne ? null : ` ${plural(run.end - run.first, "configuration")}`,
      run.seconds === null ? null : `, ${run.seconds.toFixed(1)} s`, el("div", { class: "quiet" }, run.source)), strip);
  });
}

function overview() {
  document.title = "tokenview report";
  const counter = el("span", { class: "quiet", id: "counter", role: "status" });
  const body = el("tbody");
  const again = () => fillRows(body, counter);
  const count = outcome => data.cases.filter(one => (one.expected && one.outcome === "passed" ? "expected" : one.outcome) === outcome).length;
  const filters = [["failed", "failed"], ["error", "error"], ["known", "known"], ["passed", "passed"], ["expected", "fails as expected"]]
    .filter(([outcome]) => count(outcome) > 0)
    .map(([outcome, words]) => {
      const button = el("button", { type: "button", "data-outcome": outcome, "aria-pressed": String(shown.outcomes.has(outcome)), onclick: () => {
        if (!shown.outcomes.delete(outcome)) shown.outcomes.add(outcome);
        button.setAttribute("aria-pressed", String(shown.outcomes.has(outcome)));
        again();
      } }, `${words} ${count(outcome)}`);
      return button;
    });
  const verbs = [...new Set(data.runs.map(run => run.verb))];
  const select = el("select", { id: "verb", "aria-label": "Run", onchange: event => { shown.verb = event.target.value; again(); } },
    el("option", { value: "" }, "every run"), verbs.map(verb => el("option", { value: verb, selected: verb === shown.verb }, verb)));
  const input = el("input", { type: "search", id: "search", placeholder: "Search configurations, rules, modules ( / )", "aria-label": "Search", value: search.overview,
    oninput: event => { search.overview = event.target.value; again(); } });
  const expired = data.baseline.expired, unseen = data.baseline.unseen;
  const news = data.cases.filter(one => one.outcome === "failed" || one.outcome === "error").length;
  show(
    el("h1", {}, news ? `${news} of ${plural(data.cases.length, "configuration")} ${news === 1 ? "fails" : "fail"}` : `${plural(data.cases.length, "configuration")}, nothing new fails`),
    expired.length ? el("details", { open: true }, el("summary", {}, `${expired.length} expired in the baseline`), el("ul", {}, expired.map(line => el("li", {}, line)))) : null,
    unseen.length ? el("details", {}, el("summary", {}, `${unseen.length} in the baseline and no longer seen`), el("ul", {}, unseen.map(line => el("li", {}, line)))) : null,
    ...tiles(),
    el("div", { class: "legend" }, [["passed", "passed"], ["expected", "fails, as expected of its protocol"], ["known", "known by the baseline"], ["failed", "fails"]]
      .map(([style, words]) => el("span", { class: "tiles" }, el("i", { class: style }), ` ${words}`))),
    el("div", { class: "tools" }, input, filters, verbs.length > 1 ? select : null, counter),
    el("div", { class: "scroll" }, el("table", { class: "cases" },
      el("thead", {}, el("tr", {}, ["verdict", "run", "configuration"].map(t => el("th", { scope: "col" }, t)), el("th", { class: "number", scope: "col" }, "observed"),
        el("th", { class: "number", scope: "col" }, "allowed"), barHead(), el("th", { scope: "col" }, "first problem"))), body)));
  again();
}

// ---- one configuration

/// "[0,1,PAD]" or "0-9,PAD*2" as coloured cells.
function cell(text) {
  const inner = text.startsWith("[") ? text.slice(1, -1) : text;
  const parts = inner === "" ? [] : inner.split(",");
  return el("span", { class: "cell", title: text }, parts.length === 0 ? el("i", { class: "none" }, "none") : parts.map(part => {
    if (/PAD/.test(part)) return el("i", { class: "pad" }, part);
    if (/MIX|SUM|NaN|\?/.test(part)) return el("i", { class: "mix" }, part);
    const token = el("i", {}, part);
    const first = part.match(/(\d+)(?:-[^-]*)?(?:\*\d+)?$/), dp = part.match(/d(\d+):/);  // of "2", "0-16", "3*2", "2xd1:3"
    token.style.setProperty("--hue", String((Number(first ? first[1] : 0) * 47 + 180 * Number(dp ? dp[1] : 0)) % 360));
    return token;
  }));
}

/// The tensor of a problem in the table of rows, marked.
function toFinding() {
  const row = document.getElementById("first-finding");
  if (row) row.scrollIntoView({ block: "center" });
}

/// A dotted name that may be broken behind its dots.
const breakable = name => el("span", {}, name.split(/(?<=[./])/).map((part, i) => i ? [el("wbr"), part] : part));

const placeOf = tap => (data.names[tap[0]] ? `${data.names[tap[0]]}/` : "") + data.names[tap[1]];

/// The ranks of a view, in the order of its cells.
const ranksOf = view => view[3].length ? view[3] : view[0].map((unused, i) => i);

/// What a rank of a view holds: its rows, and what they are of the value.
function holding(view, i) {
  const sum = data.names[view[1][i]], column = data.names[view[2][i]];
  const notes = [sum && sum !== "complete" ? sum : "", column && column !== "all" ? `columns ${column}` : ""].filter(Boolean).join(", ");
  return [cell(data.names[view[0][i]]), notes ? el("div", { class: "sum" }, notes) : null];
}

/// What every rank holds of a tap beside what it should; null: that is not known.
function dueSection(tap) {
  if (!tap || tap[3] < 0 || tap[11].length === 0) return null;
  const view = data.views[tap[3]];
  return el("div", { class: "scroll due" }, el("table", {},
    el("thead", {}, el("tr", {}, ["rank", "holds", "required"].map(name => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ranksOf(view).map((rank, i) => {
      const [rows, ...more] = (data.names[tap[11][i]] ?? "").split(/(?<=\])/);
      return el("tr", {}, el("td", {}, String(rank)), el("td", {}, holding(view, i)), el("td", {}, rows ? [cell(rows), el("div", { class: "sum" }, more.join("").trim())] : ""));
    }))));
}

function mapSection(one) {
  const withViews = one.taps.filter(tap => tap[3] >= 0);
  if (withViews.length === 0) return null;
  const marked = new Map();
  one.problems.forEach((problem, i) => { if (problem.tap >= 0 && !marked.has(problem.tap)) marked.set(problem.tap, i); });
  const ranks = [...new Set(withViews.flatMap(tap => ranksOf(data.views[tap[3]])))].sort((a, b) => a - b);
  const body = el("tbody");
  let call = 0, last = -1;  // last: the view before
  const addCalls = before => {
    for (; call < one.calls.length && one.calls[call][0] <= before; ++call) {
      const [, operation, group, members, elements, module] = one.calls[call];
      body.append(el("tr", { class: "call" }, el("td", { colspan: ranks.length + 1 },
        `${data.names[operation]} over ${data.names[group]}, ranks ${members.join(" ")}${elements ? `, ${Math.round(elements)} elements a rank` : ""}${data.names[module] ? `, in ${data.names[module]}` : ""}`)));
    }
  };
  one.taps.forEach((tap, index) => {
    addCalls(index);
    if (tap[3] < 0) return;
    const view = data.views[tap[3]], held = ranksOf(view);
    const problem = marked.get(index), { rule, called } = one.problems[problem] ?? {};
    // What only differs in its numbers is told in the table below: here it would hide the findings.
    const isFinding = problem === 0 || (problem !== undefined && (rule !== "difference" || called));
    const mark = [problem === 0 ? "first finding" : called ? "" : rule, called].filter(Boolean).join(": ");
    body.append(el("tr", { class: isFinding ? "finding" : tap[3] === last ? "same" : null, id: problem === 0 ? "first-finding" : null },
      el("td", { class: "name" }, breakable(placeOf(tap)), tap[2] ? ` (stage ${tap[2]})` : "", isFinding ? el("div", { class: "mark" }, mark) : null),
      ranks.map(rank => el("td", {}, held.includes(rank) ? holding(view, held.indexOf(rank)) : ""))));
    last = tap[3];
  });
  addCalls(Infinity);
  const changes = el("button", { type: "button", id: "changes", "aria-pressed": String(shown.onlyChanges), onclick: () => {
    shown.onlyChanges = !shown.onlyChanges;
    changes.setAttribute("aria-pressed", String(shown.onlyChanges));
    body.classList.toggle("changes", shown.onlyChanges);
  } }, "only where something changes");
  body.classList.toggle("changes", shown.onlyChanges);
  return el("section", {},
    el("h2", {}, "Rows of every rank, in program order"),
    el("div", { class: "legend" }, el("span", {}, cell("[3]"), "token 3"), el("span", {}, cell("[PAD]"), "no token"), el("span", {}, cell("[MIX]"), "parts of several tokens"), el("span", {}, cell("[?]"), "no known row"),
      el("span", {}, el("span", { class: "sum" }, "partial 0/4 "), "the first of 4 summands alone"), changes),
    el("div", { class: "scroll" }, el("table", { class: "map" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "tensor"), ranks.map(rank => el("th", { scope: "col" }, `rank ${rank}`)))), body)));
}

/// A strip of one colour a token: the levels of report_html.cpp.
function heat(levels) {
  if (!levels) return "";
  const width = Math.max(60, Math.min(420, levels.length * 8));
  const stops = [...levels].map((level, i) => `var(--h${level}) ${100 * i / levels.length}% ${100 * (i + 1) / levels.length}%`);
  const strip = el("span", { class: "heat", role: "img", "aria-label": `error of ${plural(levels.length, "row")}` });
  strip.style.width = `${width}px`;
  strip.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  strip.addEventListener("mousemove", event => {
    const token = Math.min(levels.length - 1, Math.max(0, Math.floor(event.offsetX / width * levels.length)));
    strip.title = `row ${token}: ${heatWords[levels[token]]}`;
  });
  return strip;
}
const heatWords = ["no error", "below 1e-5 of what is allowed", "below 1e-4 of what is allowed", "below 1e-3 of what is allowed", "below 0.01 of what is allowed",
  "below 0.1 of what is allowed", "below half of what is allowed", "below what is allowed", "over what is allowed"];

function tapsSection(one) {
  const compared = one.taps.filter(tap => tap[7] >= 0);
  if (compared.length === 0) return null;
  const body = el("tbody"), counter = el("span", { class: "quiet", role: "status" });
  const fill = () => {
    body.replaceChildren();
    const word = search.taps.toLowerCase();
    let count = 0;
    for (const tap of compared) {
      if ((shown.onlyFailed && !tap[8]) || !placeOf(tap).toLowerCase().includes(word)) continue;
      ++count;
      body.append(el("tr", { "data-tap": placeOf(tap) },
        el("td", { class: "name" }, breakable(placeOf(tap)), tap[10] ? el("div", { class: "why" }, tap[10]) : null),
        el("td", {}, badge(tap[8] ? "failed" : "passed", data.names[tap[7]] || "match")),
        el("td", { class: "number" }, number(tap[4])), el("td", { class: "number" }, number(tap[5])),
        el("td", {}, bar(tap[4], tap[5])), el("td", {}, data.names[tap[6]] || ""), el("td", {}, heat(tap[9]))));
    }
    counter.textContent = count === compared.length ? plural(count, "tap") : `${count} of ${plural(compared.length, "tap")}`;
  };
  const failed = compared.filter(tap => tap[8]).length;
  const only = el("button", { type: "button", id: "only-failed", "aria-pressed": String(shown.onlyFailed), onclick: () => {
    shown.onlyFailed = !shown.onlyFailed;
    only.setAttribute("aria-pressed", String(shown.onlyFailed));
    fill();
  } }, `failed ${failed}`);
  const input = el("input", { type: "search", id: "search", placeholder: "Search taps ( / )", "aria-label": "Search taps", value: search.taps, oninput: event => { search.taps = event.target.value; fill(); } });
  const section = el("section", {}, el("h2", {}, "Numbers, tap by tap"),
    compared.some(tap => tap[9]) ? el("div", { class: "legend" }, el("span", {}, "error of each token's row / allowed:"),
      el("span", { class: "scale" }, heatWords.map((words, level) => { const step = el("i", { title: words }); step.style.background = `var(--h${level})`; return step; })), el("span", {}, "none ... over")) : null,
    el("div", { class: "tools" }, input, failed ? only : null, counter),
    el("div", { class: "scroll" }, el("table", { class: "taps" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "tap"), el("th", { scope: "col" }, "verdict"), el("th", { class: "number", scope: "col" }, "observed"), el("th", { class: "number", scope: "col" }, "allowed"),
        barHead(), el("th", { scope: "col" }, "metric"), el("th", { scope: "col" }, compared.some(tap => tap[9]) ? "by token" : ""))), body)));
  if (!failed) shown.onlyFailed = false;
  fill();
  return section;
}

function fact(name, value) {
  return value === "" || value === null || value === undefined ? null : el("div", {}, el("dt", {}, name), el("dd", {}, value));
}

/// One problem; `tap`: the one that it is about.
function cause(problem, tap, isFirst) {
  const due = dueSection(tap);
  const pairs = [["where", [problem.place, problem.operation].filter(Boolean).join(", ")], ["tensor", problem.tensor], ["after", problem.after], ["expected", due ? "" : problem.expected],
    [problem.ranks.length ? `rank ${problem.ranks[0]} has` : "found", due ? "" : problem.actual],
    ["first bad row", problem.row >= 0 ? String(problem.row) : ""], ["ranks", problem.ranks.join(" ")], ["known", problem.known]];
  const told = problem.expected !== "" && problem.rule !== "difference";
  const heading = problem.called || (told && data.rules[problem.rule]) || problem.message;
  const rest = problem.called ? problem.message.slice(problem.message.indexOf(problem.called) + problem.called.length).replace(/^; /, "") : "";
  return el("div", { class: `cause${problem.known ? " known" : ""}` },
    el("strong", {}, heading), rest ? el("div", {}, rest) : null,
    el("dl", {}, pairs.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", { class: value === problem.expected || value === problem.actual ? "mono" : null }, value)]),
      told && /rows from/.test(problem.message) ? [el("dt", {}, "rows from"), el("dd", {}, problem.message.replace(/^.*rows from /, ""))] : []), due,
    isFirst && problem.tap >= 0 ? el("button", { type: "button", onclick: toFinding }, "show it in the table") : null);
}

function casePage(index) {
  const one = data.cases[index];
  const run = data.runs[one.run];
  document.title = `${one.name} - tokenview`;
  search.taps = "";
  const others = one.problems.slice(1);
  const step = (to, words) => to === undefined ? null : el("a", { href: `#/case/${to}` }, words);
  show(
    el("nav", {}, el("a", { href: "#/" }, "overview"), step(neighbour(index, -1), "previous failure"), step(neighbour(index, 1), "next failure")),
    el("h1", {}, one.name, " ", badge(one.outcome, verdictOf(one))),
    one.title ? el("p", {}, one.title) : "",
    el("dl", { class: "facts" }, fact("run", run.verb), fact("file", one.file), fact("worst", one.worst ? `${number(one.observed)} of ${number(one.allowed)} at ${one.worst}` : ""),
      fact("seconds", one.seconds === null ? "" : one.seconds.toFixed(2)), fact("ended", one.detail && one.problems.length ? one.detail : "")),
    one.expected ? el("p", { class: "quiet" }, "This protocol is known to be wrong at these row counts, and is expected to fail here.") : "",
    one.problems.length ? el("h2", {}, one.outcome === "passed" ? "What is found" : "First problem: the cause of those after it") : "",
    one.problems.length ? cause(one.problems[0], one.taps[one.problems[0].tap], one.taps[one.problems[0].tap]?.[3] >= 0) : "",
    one.repairs.length || one.hangsOn ? el("div", { class: "repair" }, one.hangsOn ? el("div", {}, el("strong", {}, "hangs on "), one.hangsOn) : null,
      one.repairs.map((words, i) => el("div", {}, el("strong", {}, i ? "or " : "repair "), words))) : "",
    others.length ? el("details", {}, el("summary", {}, `${plural(others.length, "more problem")}`), others.map(problem => cause(problem, one.taps[problem.tap], false))) : "",
    ...[mapSection(one), tapsSection(one)].filter(Boolean));
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

// ---- keys and addresses

/// The nearest failing configuration in a direction; undefined: none.
function neighbour(index, step) {
  for (let i = index + step; i >= 0 && i < data.cases.length; i += step) if (["failed", "error"].includes(data.cases[i].outcome)) return i;
  return undefined;
}

const openCase = () => { const found = location.hash.match(/^#\/case\/(\d+)$/); return found && data.cases[Number(found[1])] ? Number(found[1]) : -1; };

function route() {
  const index = openCase();
  if (index >= 0) casePage(index);
  else overview();
}

function mark(to) {
  if (rows.length === 0) return;
  if (here >= 0) rows[here][1].classList.remove("here");
  here = Math.max(0, Math.min(rows.length - 1, to));
  rows[here][1].classList.add("here");
  rows[here][1].scrollIntoView({ block: "nearest" });
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
}

const help = document.getElementById("help");
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help-button").addEventListener("click", () => help.showModal());

document.addEventListener("keydown", event => {
  if (!data || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  const index = openCase();
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const go = to => { if (to !== undefined) location.hash = `#/case/${to}`; };
  const keys = {
    "/": () => document.getElementById("search")?.focus(),
    "?": () => help.showModal(),
    t: toggleTheme,
    j: () => index < 0 ? mark(here + 1) : go(index + 1 < data.cases.length ? index + 1 : undefined),
    k: () => index < 0 ? mark(here - 1) : go(index > 0 ? index - 1 : undefined),
    n: () => go(neighbour(index < 0 && here >= 0 ? rows[here][0] : index, 1)),
    p: () => go(neighbour(index < 0 ? (here >= 0 ? rows[here][0] : data.cases.length) : index, -1)),
    f: toFinding,
    u: () => { location.hash = "#/"; },
    Escape: () => { location.hash = "#/"; },
    Enter: () => { if (index < 0 && here >= 0 && event.target.tagName !== "A" && event.target.tagName !== "BUTTON") go(rows[here][0]); },
  };
  const act = keys[event.key];
  if (!act) return;
  if (event.key !== "Enter") event.preventDefault();
  act();
});

async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  data = JSON.parse(await new Response(stream).text());
  const news = data.cases.filter(one => one.outcome === "failed" || one.outcome === "error").length;
  const verdict = document.getElementById("verdict");
  verdict.className = `badge ${news ? "failed" : "passed"}`;
  verdict.textContent = news ? `${news} new` : "passes";
  document.getElementById("made").textContent = `${data.time.replace("T", " ").replace("Z", " UTC")}, tokenview ${data.version}`;
  window.addEventListener("hashchange", route);
  route();
  document.documentElement.dataset.ready = "yes";
}
unpack().catch(error => { main.replaceChildren(el("p", {}, `This page cannot be unpacked: ${error.message}. It needs a browser of 2023 or later.`)); throw error; });
