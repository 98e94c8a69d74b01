"use strict";
// What the page does besides being read: words light up what they are aligned with, points tell their sentences.

// One element of `items` can be reached by Tab; the arrow keys move among them.
function roving(items) {
  items.forEach((item, n) => {
    item.tabIndex = n ? -1 : 0;
    item.addEventListener("keydown", (event) => {
      const back = getComputedStyle(item).direction === "rtl" ? "ArrowRight" : "ArrowLeft";
      const forth = back === "ArrowLeft" ? "ArrowRight" : "ArrowLeft";
      const to = { [back]: n - 1, [forth]: n + 1, Home: 0, End: items.length - 1 }[event.key];
      if (to === undefined || !items[to]) return;
      event.preventDefault();
      items.forEach((other) => { other.tabIndex = -1; });
      items[to].tabIndex = 0;
      items[to].focus();
    });
  });
}

// `show(item)` while the pointer is on an item or it has the focus; `show(null)` when neither is.
function watch(items, show) {
  let focused = null;
  for (const item of items) {
    item.addEventListener("pointerenter", () => show(item));
    item.addEventListener("pointerleave", () => show(focused));
    item.addEventListener("focus", () => { focused = item; show(item); });
    item.addEventListener("blur", () => { focused = null; show(null); });
  }
}

function readout(place, hint) {
  const line = document.createElement("p");
  line.className = "readout";
  line.setAttribute("role", "status");
  line.dir = "auto";
  place.append(line);
  const say = (text) => { line.textContent = text || hint; line.classList.toggle("hint", !text); };
  say("");
  return say;
}

function alignment(article) {
  const weights = article.dataset.attention.split(";").map((row) => row.split(" ").map(Number));
  const words = { s: [...article.querySelectorAll(".word.s")], t: [...article.querySelectorAll(".word.t")] };
  const heat = article.querySelector(".heat");
  const say = readout(article.querySelector("dl"), "Point at a word, or use Tab and the arrow keys: what it is aligned with lights up.");
  const name = (side, n) => words[side][n].textContent;

  function lit(side, n) { // [other side's word, weight], the strongest first
    const found = side === "t" ? weights[n].map((w, j) => [j, w]) : weights.map((row, i) => [i, row[n]]);
    return found.filter(([, w]) => w > 0).sort((a, b) => b[1] - a[1]);
  }
  function clear() {
    for (const word of [...words.s, ...words.t]) { word.classList.remove("at"); word.style.removeProperty("--w"); }
    heat.querySelectorAll(".at").forEach((cell) => cell.classList.remove("at"));
  }
  function mark(side, n) {
    words[side][n].classList.add("at");
    heat.querySelectorAll(side === "s" ? "thead th" : "tbody th")[n].classList.add("at");
  }
  function show(word) {
    clear();
    if (!word) return say("");
    const side = word.classList.contains("s") ? "s" : "t";
    const other = side === "s" ? "t" : "s";
    const n = words[side].indexOf(word);
    const found = lit(side, n);
    mark(side, n);
    for (const [k, w] of found) words[other][k].style.setProperty("--w", `${w}%`);
    const told = found.filter(([, w]) => w >= 5).slice(0, 5).map(([k, w]) => `${name(other, k)} ${w} %`).join(", ");
    say(`${name(side, n)} ${side === "t" ? "←" : "→"} ${told || "–"}`);
  }
  function showCell(cell) {
    clear();
    if (!cell) return say("");
    const i = cell.parentNode.sectionRowIndex, j = cell.cellIndex - 1;
    mark("s", j);
    mark("t", i);
    say(`${name("t", i)} ← ${name("s", j)} ${weights[i][j]} %`);
  }
  for (const side of ["s", "t"]) {
    roving(words[side]);
    watch(words[side], show);
  }
  heat.addEventListener("pointerover", (event) => showCell(event.target.closest("tbody td")));
  heat.addEventListener("pointerleave", () => showCell(null));
}

function plane(figure) {
  const points = [...figure.querySelectorAll(".point")];
  const say = readout(figure, "Point at a dot, or use Tab and the arrow keys: its sentence stands here.");
  const dim = (group) => points.forEach((p) => p.classList.toggle("dim", group !== null && p.dataset.group !== group));
  roving(points);
  watch(points, (point) => {
    points.forEach((p) => p.classList.toggle("at", p === point));
    dim(point ? point.dataset.group : null);
    say(point ? point.querySelector("title").textContent : "");
  });
  watch([...figure.querySelectorAll(".key")], (key) => dim(key ? key.dataset.group : null));
}

document.querySelectorAll("[data-attention]").forEach(alignment);
document.querySelectorAll(".plane").forEach(plane);
