// The attention of one sentence as a drawing: source words along the top, target words down the side.

import { vector } from "./dom.js";

const CELL = 34;
const FONT = 14;
const LONGEST = 24; // characters of a word that are shown

const shortened = (word) => ([...word].length > LONGEST ? [...word].slice(0, LONGEST - 1).join("") + "…" : word);

function widths(words, family) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${FONT}px ${family}`;
  return words.map((word) => context.measureText(word).width);
}

/** An SVG element of a hypothesis with attention. Its viewBox is its natural size in pixels. */
export function draw(hypothesis) {
  const family = getComputedStyle(document.body).fontFamily;
  const columns = hypothesis.source_words.map((word) => shortened(word.text));
  const rows = hypothesis.words.map((word) => shortened(word.text));
  const slant = Math.SQRT1_2;
  const top = Math.max(...widths(columns, family), 0) * slant + 26;
  const left = Math.max(...widths(rows, family), 0) + 22;
  const overhang = Math.max(0, ...widths(columns, family).map((w, n) => w * slant - (columns.length - n - 0.5) * CELL));
  const width = left + columns.length * CELL + overhang + 14;
  const height = top + rows.length * CELL + 10;
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", xmlns: "http://www.w3.org/2000/svg" });
  svg.append(vector("title", {}, "Attention: how much each target word (row) looked at each source word (column)"));
  svg.append(vector("rect", { class: "map-ground", width, height }));
  columns.forEach((word, j) => {
    const x = left + (j + 0.5) * CELL;
    const turn = `translate(${x} ${top - 8}) rotate(-45)`;
    svg.append(vector("text", { class: "map-label", "data-column": j, transform: turn, "font-size": FONT }, word));
  });
  rows.forEach((word, i) => svg.append(rowLabel(word, i, left, top)));
  const cells = vector("g", { class: "map-grid" });
  hypothesis.attention.forEach((row, i) => row.forEach((weight, j) => cells.append(...cell(weight, i, j, left, top))));
  svg.append(cells, vector("rect", { class: "map-cursor", width: CELL - 2, height: CELL - 2, rx: 5, visibility: "hidden" }));
  return { svg, width, height, place: (i, j) => [left + j * CELL + 1, top + i * CELL + 1] };
}

function rowLabel(word, i, left, top) {
  const place = { x: left - 10, y: top + (i + 0.5) * CELL, "text-anchor": "end", "dominant-baseline": "central" };
  return vector("text", { class: "map-label", "data-row": i, ...place, "font-size": FONT }, word);
}

function cell(weight, i, j, left, top) {
  const box = { x: left + j * CELL + 2, y: top + i * CELL + 2, width: CELL - 4, height: CELL - 4, rx: 4 };
  const share = Math.max(0, Math.min(1, weight)).toFixed(4);
  return [
    vector("rect", { class: "map-cells", ...box }),
    vector("rect", { class: "map-cell", ...box, "fill-opacity": share, "data-row": i, "data-column": j }),
  ];
}

/** A copy that needs no style sheet: every colour and font written into it. */
export function standalone(svg, width, height) {
  const copy = svg.cloneNode(true);
  const originals = svg.querySelectorAll("rect, text");
  copy.querySelectorAll("rect, text").forEach((part, n) => {
    const style = getComputedStyle(originals[n]);
    part.setAttribute("fill", style.fill);
    if (part.tagName === "text") part.setAttribute("font-family", style.fontFamily);
    part.removeAttribute("class");
  });
  copy.querySelector("[visibility]")?.remove();
  copy.removeAttribute("style");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}
