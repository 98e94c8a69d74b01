"use strict";
// Interaction of the report: highlighting of aligned words, and details of heat map cells and dots. All information is
// also on the page without this script.

const MIN_NAMED_PERCENT = 5;
const MAX_NAMED_WORDS = 5;

// Make a list of items one tab stop; the arrow keys, Home and End move the focus among them.
function rovingFocus(items) {
  items.forEach((item, n) => {
    item.tabIndex = n === 0 ? 0 : -1;
    item.addEventListener("keydown", (event) => {
      const isRightToLeft = getComputedStyle(item).direction === "rtl";
      const [previous, next] = isRightToLeft ? ["ArrowRight", "ArrowLeft"] : ["ArrowLeft", "ArrowRight"];
      const index = { [previous]: n - 1, [next]: n + 1, Home: 0, End: items.length - 1 }[event.key];
      if (index === undefined || !items[index]) return;
      event.preventDefault();
      for (const other of items) other.tabIndex = -1;
      items[index].tabIndex = 0;
      items[index].focus();
    });
  });
}

// Call show(item) while an item is focused or under the pointer, and show(null) afterwards.
function onActiveItem(items, show) {
  let focused = null;
  for (const item of items) {
    item.addEventListener("pointerenter", () => show(item));
    item.addEventListener("pointerleave", () => show(focused));
    item.addEventListener("focus", () => {
      focused = item;
      show(item);
    });
    item.addEventListener("blur", () => {
      focused = null;
      show(null);
    });
  }
}

// Append a status line to a container; return a function that sets its text, or shows the hint for "".
function createStatusLine(container, hint) {
  const line = document.createElement("p");
  line.className = "status";
  line.setAttribute("role", "status");
  line.dir = "auto";
  container.append(line);
  const setText = (text) => {
    line.textContent = text || hint;
    line.classList.toggle("hint", !text);
  };
  setText("");
  return setText;
}

function initAlignment(article) {
  const rows = article.dataset.attention.split(";");
  const weights = rows.map((row) => row.split(" ").map(Number)); // percent, [target words][source words]
  const words = {
    source: [...article.querySelectorAll(".word.source")],
    target: [...article.querySelectorAll(".word.target")],
  };
  const heatMap = article.querySelector(".heat-map");
  const labels = {
    source: heatMap.querySelectorAll("thead th"),
    target: heatMap.querySelectorAll("tbody th"),
  };
  const setStatus = createStatusLine(
    article.querySelector("dl"),
    "Point at a word, or use Tab and the arrow keys, to highlight the words aligned with it.",
  );
  const textOf = (side, index) => words[side][index].textContent;

  // Return [index, weight] of the other side's words, highest weight first.
  function alignedWords(side, index) {
    const row = side === "target" ? weights[index] : weights.map((targetRow) => targetRow[index]);
    const entries = [...row.entries()].filter(([, weight]) => weight > 0);
    return entries.sort((a, b) => b[1] - a[1]);
  }

  function clear() {
    for (const word of [...words.source, ...words.target]) {
      word.classList.remove("is-active");
      word.style.removeProperty("--weight");
    }
    heatMap.querySelectorAll(".is-active").forEach((label) => label.classList.remove("is-active"));
    setStatus("");
  }

  function activate(side, index) {
    words[side][index].classList.add("is-active");
    labels[side][index].classList.add("is-active");
  }

  function showWord(word) {
    clear();
    if (!word) return;
    const side = word.classList.contains("source") ? "source" : "target";
    const otherSide = side === "source" ? "target" : "source";
    const index = words[side].indexOf(word);
    const aligned = alignedWords(side, index);
    activate(side, index);
    for (const [other, weight] of aligned) words[otherSide][other].style.setProperty("--weight", `${weight}%`);
    const named = aligned.filter(([, weight]) => weight >= MIN_NAMED_PERCENT).slice(0, MAX_NAMED_WORDS);
    const names = named.map(([other, weight]) => `${textOf(otherSide, other)} ${weight}%`);
    const arrow = side === "target" ? "←" : "→";
    setStatus(`${textOf(side, index)} ${arrow} ${names.join(", ") || "–"}`);
  }

  function showCell(cell) {
    clear();
    if (!cell) return;
    const target = cell.parentNode.sectionRowIndex;
    const source = cell.cellIndex - 1;
    activate("source", source);
    activate("target", target);
    setStatus(`${textOf("target", target)} ← ${textOf("source", source)} ${weights[target][source]}%`);
  }

  for (const side of ["source", "target"]) {
    rovingFocus(words[side]);
    onActiveItem(words[side], showWord);
  }
  heatMap.addEventListener("pointerover", (event) => showCell(event.target.closest("tbody td")));
  heatMap.addEventListener("pointerleave", () => showCell(null));
}

function initScatterPlot(figure) {
  const points = [...figure.querySelectorAll(".point")];
  const hint = "Point at a dot, or use Tab and the arrow keys, to see its sentence.";
  const setStatus = createStatusLine(figure, hint);

  function dimOtherGroups(group) {
    for (const point of points) {
      point.classList.toggle("is-dimmed", group !== null && point.dataset.group !== group);
    }
  }

  function showPoint(active) {
    for (const point of points) point.classList.toggle("is-active", point === active);
    dimOtherGroups(active ? active.dataset.group : null);
    setStatus(active ? active.querySelector("title").textContent : "");
  }

  rovingFocus(points);
  onActiveItem(points, showPoint);
  const legend = [...figure.querySelectorAll(".legend-item")];
  onActiveItem(legend, (item) => dimOtherGroups(item ? item.dataset.group : null));
}

document.querySelectorAll("[data-attention]").forEach(initAlignment);
document.querySelectorAll(".scatter-plot").forEach(initScatterPlot);
