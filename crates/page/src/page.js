// SPDX-License-Identifier: Apache-2.0
// Sorts, searches and filters the tables, hides what the role filter leaves out, reads the heat map
// out, and chooses the theme. It makes no request. Texts become text, never markup.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 25;
const filter = {role: "", ranks: null};
const byId = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ---- Figures as the tool prints them ----

function three(value) {
  const size = Math.abs(value);
  if (size > 0 && size < 0.0095) return value.toExponential(1);
  if (size < 0.95) return value.toFixed(3);
  if (size < 9.995) return value.toFixed(2);
  return size < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

function duration(ns) {
  if (ns < 999.5) return ns.toFixed(0) + " ns";
  if (ns < 999500) return three(ns / 1e3) + " us";
  if (ns < 999.5e6) return three(ns / 1e6) + " ms";
  if (ns < 120e9) return three(ns / 1e9) + " s";
  const seconds = Math.round(ns / 1e9);
  return Math.floor(seconds / 60) + " min " + seconds % 60 + " s";
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  // What is shown as 1024 is one of the next unit.
  const most = (value) => Number.isInteger(value) ? 1024 : 1023.5;
  for (; value >= most(value) && unit + 1 < units.length; unit++) value /= 1024;
  return (Number.isInteger(value) ? value : three(value)) + " " + units[unit];
}

// [1, [5, 8]] are the ranks 1 and 5 to 8. A long list is cut.
function ranges(parts) {
  const shown = parts.slice(0, 32).map((part) => [part].flat().join("-")).join(", ");
  const more = parts.slice(32).map((part) => [part].flat())
    .reduce((sum, part) => sum + part[part.length - 1] - part[0] + 1, 0);
  return more > 0 ? `${shown} and ${more.toLocaleString("en")} more` : shown;
}

const FORMATS = {
  number: (value) => value.toLocaleString("en"),
  bytes, ns: duration, three, ranks: ranges,
  percent: (share) => (100 * share).toFixed(1) + " %",
};
const LEFT = new Set(["text", "role", "ranks"]);
const text = (kind, value) => value === null || value === undefined || value === "" ? "-" :
  (FORMATS[kind] || String)(value);

// ---- Filters ----

// "8, 12-15" as a set; null if nothing is asked for, undefined if it cannot be read.
function readRanks(words) {
  if (words.trim() === "") return null;
  const ranks = new Set();
  for (const part of words.split(/[\s,;]+/).filter(Boolean)) {
    const match = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part);
    if (!match) return undefined;
    const from = Number(match[1]), to = Number(match[2] ?? match[1]);
    if (to < from) return undefined;
    for (let rank = from; rank <= to; rank++) ranks.add(rank);
  }
  return ranks;
}

// A table without a column of roles, or of ranks, is not filtered by them.
function passes(columns, row) {
  const of = (...kinds) => columns.map((column, at) => kinds.includes(column.kind) ? at : -1)
    .filter((at) => at >= 0);
  const roles = filter.role === "" ? [] : of("role");
  if (roles.length > 0 && !roles.some((at) =>
    String(row[at] ?? "").split(", ").includes(filter.role) || row[at] === filter.role)) {
    return false;
  }
  const ranks = filter.ranks === null ? [] : of("rank", "ranks");
  return ranks.length === 0 ||
    ranks.some((at) => Array.isArray(row[at]) ? row[at].some(isChosen) : isChosen(row[at]));
}

// Whether the filter has this rank, or one of the range [from, to].
function isChosen(part) {
  if (!Array.isArray(part)) return filter.ranks.has(part);
  for (let rank = part[0]; rank <= part[1]; rank++) if (filter.ranks.has(rank)) return true;
  return false;
}

// ---- Tables ----

function compare(a, b) {
  if (a === null || b === null || a === undefined || b === undefined) {
    return Number(a === null || a === undefined) - Number(b === null || b === undefined);
  }
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", {numeric: true});
}

class Table {
  constructor(table, place) {
    Object.assign(this, {table, sorted: null, isDown: false, first: 0, words: ""});
    this.body = element("tbody", {});
    this.say = element("span", {role: "status"});
    this.back = this.button("Previous", -PAGE);
    this.next = this.button("Next", PAGE);
    this.heads = table.columns.map((column, at) => this.head(column, at));
    const search = element("input", {type: "search", autocomplete: "off", spellcheck: "false"});
    search.addEventListener("input", () => {
      this.words = search.value.toLowerCase();
      this.first = 0;
      this.show();
    });
    const label = element("label", {}, "Search ", search);
    const title = "Table " + table.title;
    const rows = element("table", {"aria-label": table.title},
      element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    const box = {class: "scroll", tabindex: "0", role: "group", "aria-label": title};
    const scroll = element("div", box, rows);
    place.append(element("div", {class: "tools"}, label, this.back, this.next, this.say), scroll);
    this.show();
  }

  button(name, by) {
    const label = name + " rows of " + this.table.title;
    const made = element("button", {type: "button", "aria-label": label}, name);
    made.addEventListener("click", () => {
      this.first += by;
      this.show();
    });
    return made;
  }

  head(column, at) {
    const button = element("button", {type: "button"}, column.name);
    button.addEventListener("click", () => this.sortBy(at));
    const side = LEFT.has(column.kind) ? "" : "number";
    return element("th", {scope: "col", class: side, "aria-sort": "none"}, button);
  }

  // Figures begin with the greatest, texts with the first.
  sortBy(at) {
    const isText = LEFT.has(this.table.columns[at].kind) || this.table.columns[at].kind === "rank";
    this.isDown = this.sorted === at ? !this.isDown : !isText;
    this.sorted = at;
    this.first = 0;
    this.heads.forEach((head, other) => head.setAttribute("aria-sort",
      other !== at ? "none" : this.isDown ? "descending" : "ascending"));
    this.show();
  }

  matches() {
    const {columns, rows} = this.table;
    const has = (row) => this.words === "" || row.some((value, at) =>
      text(columns[at].kind, value).toLowerCase().includes(this.words));
    const found = rows.filter((row) => passes(columns, row) && has(row));
    const {sorted, isDown} = this;
    if (sorted !== null) {
      found.sort((a, b) => {
        const isMissing = (row) => row[sorted] === null || row[sorted] === undefined;
        const order = compare(a[sorted], b[sorted]);
        return isDown && !isMissing(a) && !isMissing(b) ? -order : order;
      });
    }
    return found;
  }

  show() {
    const found = this.matches();
    this.first = Math.max(0, Math.min(this.first, Math.floor((found.length - 1) / PAGE) * PAGE));
    const last = Math.min(this.first + PAGE, found.length);
    this.body.replaceChildren(...found.slice(this.first, last).map((row) => this.row(row)));
    this.back.disabled = this.first === 0;
    this.next.disabled = last >= found.length;
    const all = found.length.toLocaleString("en");
    this.say.textContent = found.length === 0 ? "no rows" :
      `${(this.first + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${all}`;
  }

  row(row) {
    return element("tr", {}, ...this.table.columns.map(({kind}, at) => {
      const shown = text(kind, row[at]);
      const isLeft = LEFT.has(kind);
      return element("td", {class: !isLeft ? "number" : shown.length > 40 ? "wide" : ""}, shown);
    }));
  }
}

const tables = data.tables.map((table) => new Table(table, byId("table-" + table.id)));

function applyFilters() {
  const words = byId("ranks").value;
  const ranks = readRanks(words);
  byId("ranks").setAttribute("aria-invalid", String(ranks === undefined));
  byId("filter-say").textContent = ranks === undefined ? "Ranks are numbers and ranges: 8, 12-15" :
    "";
  filter.role = byId("role").value;
  filter.ranks = ranks === undefined ? null : ranks;
  for (const part of document.querySelectorAll("[data-role]")) {
    part.toggleAttribute("hidden", filter.role !== "" && part.dataset.role !== filter.role);
  }
  for (const table of tables) {
    table.first = 0;
    table.show();
  }
  const first = filter.ranks && [...filter.ranks][0];
  if (typeof first === "number") heat?.goTo(first);
}

// ---- The heat map ----

class Heat {
  constructor(heat, box) {
    const {left, top, column, row} = box.dataset;
    Object.assign(this, {heat, box, x: 0, y: 0});
    Object.assign(this, {left: Number(left), top: Number(top)});
    Object.assign(this, {column: Number(column), row: Number(row)});
    this.svg = box.querySelector("svg");
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("focus", () => this.read());
    box.addEventListener("keydown", (event) => this.key(event));
  }

  point(event) {
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(this.svg.getScreenCTM().inverse());
    const x = Math.floor((at.x - this.left) / this.column);
    const y = Math.floor((at.y - this.top) / this.row);
    if (this.heat.cells[y]?.[x] === undefined) return;
    Object.assign(this, {x, y});
    this.read();
  }

  key(event) {
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const clamp = (value, all) => Math.max(0, Math.min(value, all - 1));
    this.x = clamp(this.x + move[0], this.heat.cells[0].length);
    this.y = clamp(this.y + move[1], this.heat.cells.length);
    this.read();
  }

  goTo(rank) {
    const at = this.heat.ranks.indexOf(rank);
    if (at < 0) return;
    this.y = Math.floor(at / this.heat.ranks_per_row);
    this.read();
  }

  read() {
    const {ranks, steps, ranks_per_row: rows, steps_per_column: columns} = this.heat;
    const some = (list, at, each) => list.slice(at * each, (at + 1) * each);
    const name = (one, list) => list.length === 1 ? `${one} ${list[0]}` :
      `${one}s ${list[0]} to ${list[list.length - 1]}`;
    const inRow = some(ranks, this.y, rows);
    const share = (this.heat.cells[this.y][this.x] / 10).toFixed(1);
    const worst = inRow[this.heat.worst[this.y][this.x]];
    const whom = inRow.length > 1 ? `rank ${worst}, the worst of them` : "it";
    byId("heat-say").textContent = name("rank", inRow) + ", " +
      name("step", some(steps, this.x, columns)) +
      `: the others waited ${share} % of the step for ${whom}.`;
    const cursor = byId("heat-cursor");
    cursor.setAttribute("x", this.left + this.x * this.column);
    cursor.setAttribute("y", this.top + this.y * this.row);
    cursor.removeAttribute("hidden");
  }
}

const heat = data.heat && byId("heat-box") ? new Heat(data.heat, byId("heat-box")) : null;

// ---- Theme, filters, paper ----

const THEMES = ["system", "light", "dark"];
function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = "Theme: " + theme;
}
function stored(theme) {
  // A file may not be allowed to store anything.
  try {
    if (theme) localStorage.setItem("ncclscope-theme", theme);
    return localStorage.getItem("ncclscope-theme");
  } catch {
    return null;
  }
}
let theme = THEMES.includes(stored()) ? stored() : "system";
setTheme(theme);
byId("theme").hidden = false;
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  stored(theme);
  setTheme(theme);
});

byId("filters").hidden = false;
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("role").addEventListener("change", applyFilters);
byId("ranks").addEventListener("input", applyFilters);
byId("reset").addEventListener("click", () => {
  byId("filters").reset();
  applyFilters();
});
// A browser may restore what was chosen before.
applyFilters();

let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((part) => part.open = true);
});
window.addEventListener("afterprint", () => closed.forEach((part) => part.open = false));
document.documentElement.dataset.ready = "true";
