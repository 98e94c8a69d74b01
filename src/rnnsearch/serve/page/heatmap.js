// Draws the attention weights of a sentence as SVG: source words along the top, target words down the side.

import { percent, svgElement } from "./dom.js";

const CELL = 34; // pixels
const FONT_SIZE = 14;
const MARGIN = 14; // around saved drawings
const SCALE = [0, 0.25, 0.5, 0.75, 1]; // weights shown in the colour scale
const MAX_LABEL_LENGTH = 24; // characters

function shortened(word) {
  const characters = [...word];
  if (characters.length <= MAX_LABEL_LENGTH) return word;
  return characters.slice(0, MAX_LABEL_LENGTH - 1).join("") + "…";
}

function textWidths(words, family) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${FONT_SIZE}px ${family}`;
  return words.map((word) => context.measureText(word).width);
}

/**
 * Draw a hypothesis with attention weights.
 * @returns {{svg: SVGElement, width: number, height: number, cellPosition: (row, column) => [x, y]}}
 *   The drawing and its natural size in pixels.
 */
export function draw(hypothesis) {
  const family = getComputedStyle(document.body).fontFamily;
  const columns = hypothesis.source_words.map((word) => shortened(word.text));
  const rows = hypothesis.words.map((word) => shortened(word.text));
  const slanted = textWidths(columns, family).map((width) => width * Math.SQRT1_2); // labels at 45°
  const top = Math.max(...slanted, 0) + 26;
  const left = Math.max(...textWidths(rows, family), 0) + 22;
  const overhangs = slanted.map((width, n) => width - (columns.length - n - 0.5) * CELL);
  const width = left + columns.length * CELL + Math.max(0, ...overhangs) + MARGIN;
  const height = top + rows.length * CELL + 10;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(svgElement("title", {}, "Attention weights: target words (rows), source words (columns)"));
  columns.forEach((word, column) => svg.append(columnLabel(word, column, left, top)));
  rows.forEach((word, row) => svg.append(rowLabel(word, row, left, top)));
  const cells = svgElement("g", { class: "map-grid" });
  hypothesis.attention.forEach((weights, row) => {
    weights.forEach((weight, column) => {
      const data = { "data-row": row, "data-column": column };
      cells.append(...cell(weight, left + column * CELL, top + row * CELL, data));
    });
  });
  const size = CELL - 2;
  const cursor = { class: "map-cursor", width: size, height: size, rx: 5, visibility: "hidden" };
  svg.append(cells, svgElement("rect", cursor));
  const cellPosition = (row, column) => [left + column * CELL + 1, top + row * CELL + 1];
  return { svg, width, height, cellPosition };
}

function columnLabel(word, column, left, top) {
  const x = left + (column + 0.5) * CELL;
  const attributes = {
    class: "map-label",
    "data-column": column,
    transform: `translate(${x} ${top - 8}) rotate(-45)`,
    "font-size": FONT_SIZE,
  };
  return svgElement("text", attributes, word);
}

function rowLabel(word, row, left, top) {
  const attributes = {
    class: "map-label",
    "data-row": row,
    x: left - 10,
    y: top + (row + 0.5) * CELL,
    "text-anchor": "end",
    "dominant-baseline": "central",
    "font-size": FONT_SIZE,
  };
  return svgElement("text", attributes, word);
}

/** Return a background and a cell above it whose opacity is the weight. */
function cell(weight, left, top, data = {}) {
  const box = { x: left + 2, y: top + 2, width: CELL - 4, height: CELL - 4, rx: 4 };
  const opacity = Math.max(0, Math.min(1, weight)).toFixed(4);
  return [
    svgElement("rect", { class: "map-cell-background", ...box }),
    svgElement("rect", { class: "map-cell", ...box, "fill-opacity": opacity, ...data }),
  ];
}

/** Draw the colour scale. */
export function drawScale() {
  const width = SCALE.length * CELL;
  const height = CELL + FONT_SIZE;
  const viewBox = `0 0 ${width} ${height}`;
  const svg = svgElement("svg", { class: "map-scale", viewBox, width, height, role: "img" });
  svg.append(svgElement("title", {}, "Colour scale from 0% (left) to 100% (right)"));
  SCALE.forEach((weight, n) => {
    const label = {
      class: "map-label",
      x: (n + 0.5) * CELL,
      y: height - 2,
      "text-anchor": "middle",
      "font-size": FONT_SIZE - 2,
    };
    svg.append(...cell(weight, n * CELL, 0), svgElement("text", label, percent(weight)));
  });
  return svg;
}

/** Serialise the map and its scale, with all colours and fonts inlined so that no style sheet is needed. */
export function standalone(map, scale, background) {
  const [mapBox, scaleBox] = [map, scale].map((drawing) => drawing.viewBox.baseVal);
  const width = Math.ceil(Math.max(mapBox.width, scaleBox.width + 2 * MARGIN));
  const height = Math.ceil(mapBox.height + scaleBox.height + MARGIN);
  const svg = svgElement("svg", { width, height, xmlns: "http://www.w3.org/2000/svg" });
  svg.append(
    svgElement("rect", { width, height, fill: background }),
    inlined(map, 0, 0),
    inlined(scale, MARGIN, mapBox.height),
  );
  return new XMLSerializer().serializeToString(svg);
}

function inlined(drawing, x, y) {
  const copy = drawing.cloneNode(true);
  const originals = drawing.querySelectorAll("rect, text");
  copy.querySelectorAll("rect, text").forEach((shape, n) => {
    const style = getComputedStyle(originals[n]);
    shape.setAttribute("fill", style.fill);
    if (shape.tagName === "text") shape.setAttribute("font-family", style.fontFamily);
    shape.removeAttribute("class");
  });
  copy.querySelector("[visibility]")?.remove(); // the cursor
  for (const name of ["class", "style"]) copy.removeAttribute(name);
  const { width, height } = drawing.viewBox.baseVal;
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, value);
  return copy;
}
