// The attention of one sentence as a drawing: source words along the top, target words down the side.

import { percent, vector } from "./dom.js";

const CELL = 34;
const FONT = 14;
const EDGE = 14; // what is left empty around what is saved
const SCALE = [0, 0.25, 0.5, 0.75, 1]; // the shares that the scale shows
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
  const width = left + columns.length * CELL + overhang + EDGE;
  const height = top + rows.length * CELL + 10;
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(vector("title", {}, "Attention: how much each target word (row) looked at each source word (column)"));
  columns.forEach((word, j) => {
    const x = left + (j + 0.5) * CELL;
    const turn = `translate(${x} ${top - 8}) rotate(-45)`;
    svg.append(vector("text", { class: "map-label", "data-column": j, transform: turn, "font-size": FONT }, word));
  });
  rows.forEach((word, i) => svg.append(rowLabel(word, i, left, top)));
  const cells = vector("g", { class: "map-grid" });
  hypothesis.attention.forEach((row, i) =>
    row.forEach((share, j) =>
      cells.append(...cell(share, left + j * CELL, top + i * CELL, { "data-row": i, "data-column": j })),
    ),
  );
  svg.append(cells, vector("rect", { class: "map-cursor", width: CELL - 2, height: CELL - 2, rx: 5, visibility: "hidden" }));
  return { svg, width, height, place: (i, j) => [left + j * CELL + 1, top + i * CELL + 1] };
}

function rowLabel(word, i, left, top) {
  const place = { x: left - 10, y: top + (i + 0.5) * CELL, "text-anchor": "end", "dominant-baseline": "central" };
  return vector("text", { class: "map-label", "data-row": i, ...place, "font-size": FONT }, word);
}

/** A cell as strong as its share of attention, over the ground that every cell has. */
function cell(share, left, top, place = {}) {
  const box = { x: left + 2, y: top + 2, width: CELL - 4, height: CELL - 4, rx: 4 };
  const strength = Math.max(0, Math.min(1, share)).toFixed(4);
  return [
    vector("rect", { class: "map-cells", ...box }),
    vector("rect", { class: "map-cell", ...box, "fill-opacity": strength, ...place }),
  ];
}

/** What the colours of the cells mean. */
export function drawScale() {
  const [width, height] = [SCALE.length * CELL, CELL + FONT];
  const svg = vector("svg", { class: "map-scale", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.append(vector("title", {}, "Scale of the colours, from 0% at the left to 100% at the right"));
  SCALE.forEach((share, n) => {
    const under = { x: (n + 0.5) * CELL, y: height - 2, "text-anchor": "middle", "font-size": FONT - 2 };
    svg.append(...cell(share, n * CELL, 0), vector("text", { class: "map-label", ...under }, percent(share)));
  });
  return svg;
}

/** The map above its scale on a ground, needing no style sheet: every colour and font is written into it. */
export function standalone(map, scale, ground) {
  const [above, below] = [map, scale].map((drawing) => drawing.viewBox.baseVal);
  const width = Math.ceil(Math.max(above.width, below.width + 2 * EDGE));
  const height = Math.ceil(above.height + below.height + EDGE);
  const whole = vector("svg", { width, height, xmlns: "http://www.w3.org/2000/svg" });
  whole.append(vector("rect", { width, height, fill: ground }), copied(map, 0, 0), copied(scale, EDGE, above.height));
  return new XMLSerializer().serializeToString(whole);
}

function copied(drawing, x, y) {
  const copy = drawing.cloneNode(true);
  const originals = drawing.querySelectorAll("rect, text");
  copy.querySelectorAll("rect, text").forEach((part, n) => {
    const style = getComputedStyle(originals[n]);
    part.setAttribute("fill", style.fill);
    if (part.tagName === "text") part.setAttribute("font-family", style.fontFamily);
    part.removeAttribute("class");
  });
  copy.querySelector("[visibility]")?.remove();
  for (const own of ["class", "style"]) copy.removeAttribute(own);
  const { width, height } = drawing.viewBox.baseVal;
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, value);
  return copy;
}
