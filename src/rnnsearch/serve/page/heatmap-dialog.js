// The heat map dialog: zoom, a cell cursor for mouse, touch and arrow keys, and export as SVG or PNG.

import { $, byPointer, percent, saveAs, setUnavailable } from "./dom.js";
import { draw, drawScale, standalone } from "./heatmap.js";
import { toast } from "./status.js";
import { hypothesis, on, pendingReason, state } from "./store.js";

const [MIN_ZOOM, MAX_ZOOM] = [0.25, 4];
const MAX_INITIAL_ZOOM = 1.4;
const MIN_INITIAL_ZOOM = 0.7; // by height; the map may be taller than the window
const ZOOM_STEP = 1.25;
const WHEEL_ZOOM_STEP = 1.1;
const PNG_SCALE = 2;
const HINT =
  "Rows are translated words, columns are source words. The stronger a cell, the higher its attention weight. " +
  byPointer("Point at a cell to see its value.", "Tap a cell to see its value.");
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const dialog = $("map");
const scrollArea = $("map-scroll");
const scale = drawScale();
let map = null; // {svg, width, height, cellPosition, hypothesis}
let zoom = 1;
let cursor = [0, 0]; // row, column

function open() {
  map = { ...draw(hypothesis()), hypothesis: hypothesis() };
  scrollArea.replaceChildren(map.svg);
  $("map-status").textContent = HINT;
  dialog.showModal();
  fit();
  scrollArea.focus();
}

function setZoom(value) {
  zoom = Math.max(MIN_ZOOM, Math.min(MAX_ZOOM, value));
  setUnavailable($("zoom-out"), zoom > MIN_ZOOM ? "" : "Minimum zoom reached");
  setUnavailable($("zoom-in"), zoom < MAX_ZOOM ? "" : "Maximum zoom reached");
  map.svg.style.width = `${map.width * zoom}px`;
  map.svg.style.height = `${map.height * zoom}px`;
}

const zoomIn = () => setZoom(zoom * ZOOM_STEP);
const zoomOut = () => setZoom(zoom / ZOOM_STEP);

function fit() {
  const byWidth = (innerWidth - 64) / map.width;
  const byHeight = Math.max(MIN_INITIAL_ZOOM, (innerHeight - 220) / map.height);
  setZoom(Math.min(MAX_INITIAL_ZOOM, byWidth, byHeight));
}

/** Move the cursor to a cell and show its value. */
function selectCell(row, column) {
  const { words, source_words: sourceWords, attention } = map.hypothesis;
  if (!words[row] || !sourceWords[column]) return;
  cursor = [row, column];
  const [x, y] = map.cellPosition(row, column);
  const frame = map.svg.querySelector(".map-cursor");
  frame.setAttribute("x", x);
  frame.setAttribute("y", y);
  frame.setAttribute("visibility", "visible");
  for (const label of map.svg.querySelectorAll(".map-label")) {
    const { row: labelRow, column: labelColumn } = label.dataset;
    const isActive = labelRow === String(row) || labelColumn === String(column);
    label.classList.toggle("is-active", isActive);
  }
  const weight = percent(attention[row][column]);
  $("map-status").textContent = `${words[row].text} ← ${sourceWords[column].text}: ${weight}`;
}

/** Move the cursor by rows and columns; the first move only shows it. */
function moveCursor([down, right]) {
  const frame = map.svg.querySelector(".map-cursor");
  const isFirst = frame.getAttribute("visibility") === "hidden";
  const { words, source_words: sourceWords } = map.hypothesis;
  const clamp = (n, count) => Math.max(0, Math.min(count - 1, n));
  const row = clamp(cursor[0] + (isFirst ? 0 : down), words.length);
  const column = clamp(cursor[1] + (isFirst ? 0 : right), sourceWords.length);
  selectCell(row, column);
  frame.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function onKeydown(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (MOVES[event.key] && document.activeElement === scrollArea) moveCursor(MOVES[event.key]);
  else if (event.key === "+" || event.key === "=") zoomIn();
  else if (event.key === "-") zoomOut();
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
}

function onWheel(event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  setZoom(event.deltaY < 0 ? zoom * WHEEL_ZOOM_STEP : zoom / WHEEL_ZOOM_STEP);
}

function save(blob, extension) {
  const name = `attention-${state.model.source}-${state.model.target}.${extension}`;
  saveAs(blob, name);
  toast(`Saved as ${name}`);
}

function toSvgBlob() {
  const background = getComputedStyle(dialog).backgroundColor;
  const type = "image/svg+xml;charset=utf-8";
  return new Blob([standalone(map.svg, scale, background)], { type });
}

async function savePng() {
  const url = URL.createObjectURL(toSvgBlob());
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = PNG_SCALE * image.width;
    canvas.height = PNG_SCALE * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, "png"), "image/png");
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Update whether the dialog can be opened, and why not. */
function updateButton() {
  const shown = hypothesis();
  let reason = pendingReason();
  if (!reason && !(shown?.attention?.length && shown.source_words.length)) {
    reason = state.model?.attention
      ? "No attention weights for this translation"
      : "This model has no attention";
  }
  setUnavailable($("show-map"), reason);
}

export function start() {
  $("map-status").before(scale);
  $("show-map").addEventListener("click", open);
  $("zoom-in").addEventListener("click", zoomIn);
  $("zoom-out").addEventListener("click", zoomOut);
  $("zoom-fit").addEventListener("click", fit);
  $("save-svg").addEventListener("click", () => save(toSvgBlob(), "svg"));
  $("save-png").addEventListener("click", savePng);
  dialog.addEventListener("keydown", onKeydown);
  scrollArea.addEventListener("pointerover", (event) => {
    const { row, column } = event.target.dataset;
    if (row !== undefined && column !== undefined) selectCell(Number(row), Number(column));
  });
  scrollArea.addEventListener("wheel", onWheel, { passive: false });
  for (const name of ["answer", "target", "current", "model", "stale"]) on(name, updateButton);
}
