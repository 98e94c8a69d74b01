// The heat map's window: zoom, a cursor for mouse and arrow keys, and saving as SVG or PNG.

import { $, allow, byPointer, percent, saveAs } from "./dom.js";
import { draw, drawScale, standalone } from "./heatmap.js";
import { toast } from "./status.js";
import { hypothesis, on, state, whyWait } from "./store.js";

const [SMALLEST, LARGEST] = [0.25, 4]; // zoom
const HINT =
  "A row for each word of the translation: the stronger a cell, the more it looked at that source word. " +
  byPointer("Point at one for its number.", "Tap one for its number.");
const scroll = $("map-scroll");
const scale = drawScale();
let shown = null; // {svg, width, height, place, hypothesis}
let zoom = 1;
let cursor = [0, 0];

function open() {
  shown = { ...draw(hypothesis()), hypothesis: hypothesis() };
  scroll.replaceChildren(shown.svg);
  $("map-detail").textContent = HINT;
  $("map").showModal();
  fit();
  scroll.focus();
}

function setZoom(to) {
  zoom = Math.max(SMALLEST, Math.min(LARGEST, to));
  allow($("zoom-out"), zoom > SMALLEST ? "" : "The map is as small as it can be");
  allow($("zoom-in"), zoom < LARGEST ? "" : "The map is as large as it can be");
  shown.svg.style.width = `${shown.width * zoom}px`;
  shown.svg.style.height = `${shown.height * zoom}px`;
}

/** As large as the window allows, but no larger than half again its natural size. */
function fit() {
  const room = [innerWidth - 64, innerHeight - 220];
  setZoom(Math.min(1.4, room[0] / shown.width, Math.max(0.7, room[1] / shown.height)));
}

function point(i, j) {
  const { hypothesis: h, svg, place } = shown;
  if (!h.words[i] || !h.source_words[j]) return;
  cursor = [i, j];
  const [x, y] = place(i, j);
  const mark = svg.querySelector(".map-cursor");
  for (const [key, value] of Object.entries({ x, y, visibility: "visible" })) mark.setAttribute(key, value);
  for (const label of svg.querySelectorAll(".map-label")) {
    label.classList.toggle("is-pointed", label.dataset.row === String(i) || label.dataset.column === String(j));
  }
  $("map-detail").textContent = `${h.words[i].text} ← ${h.source_words[j].text}: ${percent(h.attention[i][j])}`;
}

function pressed(event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const zooms = { "+": zoom * 1.25, "=": zoom * 1.25, "-": zoom / 1.25 };
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (moves[event.key] && document.activeElement === scroll) {
    const hidden = shown.svg.querySelector(".map-cursor").getAttribute("visibility") === "hidden";
    const [down, right] = hidden ? [0, 0] : moves[event.key];
    const { words, source_words: sources } = shown.hypothesis;
    const within = (n, count) => Math.max(0, Math.min(count - 1, n));
    point(within(cursor[0] + down, words.length), within(cursor[1] + right, sources.length));
    shown.svg.querySelector(".map-cursor").scrollIntoView({ block: "nearest", inline: "nearest" });
  } else if (zooms[event.key]) setZoom(zooms[event.key]);
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
}

function save(blob, kind) {
  const name = `attention-${state.model.source}-${state.model.target}.${kind}`;
  saveAs(blob, name);
  toast(`Saved as ${name}`);
}

const svgBlob = () => {
  const ground = getComputedStyle($("map")).backgroundColor;
  return new Blob([standalone(shown.svg, scale, ground)], { type: "image/svg+xml;charset=utf-8" });
};

/** The drawing at twice its size, as pixels. */
async function savePng() {
  const url = URL.createObjectURL(svgBlob());
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, "png"), "image/png");
  } finally {
    URL.revokeObjectURL(url);
  }
}

export function start() {
  $("map-detail").before(scale);
  $("show-map").addEventListener("click", open);
  $("zoom-in").addEventListener("click", () => setZoom(zoom * 1.25));
  $("zoom-out").addEventListener("click", () => setZoom(zoom / 1.25));
  $("zoom-fit").addEventListener("click", fit);
  $("save-svg").addEventListener("click", () => save(svgBlob(), "svg"));
  $("save-png").addEventListener("click", savePng);
  $("map").addEventListener("keydown", pressed);
  scroll.addEventListener("pointerover", (event) => {
    const { row, column } = event.target.dataset;
    if (row !== undefined && column !== undefined) point(Number(row), Number(column));
  });
  scroll.addEventListener("wheel", zoomByWheel, { passive: false });
  for (const event of ["answer", "target", "current", "model", "stale"]) on(event, offer);
}

function zoomByWheel(event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  setZoom(zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
}

/** Whether there is attention to draw, or why not, on the button. */
function offer() {
  const some = hypothesis()?.attention?.length && hypothesis().source_words.length;
  const none = state.model?.attention ? "This translation has no attention to draw" : "This model has no attention";
  allow($("show-map"), whyWait() || (some ? "" : none));
}
