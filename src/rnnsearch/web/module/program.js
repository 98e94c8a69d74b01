// Whether data is a program (engine/program.py), as `parsed` there and the counts of its Checker have it. What it names and
// the ranges of its parts are looked at where they are used.

const MOST_PARTS = 4096; // also of states, features and layers
const CODES = 2 ** 31;

const int = (value) => Number.isInteger(value) && Math.abs(value) < CODES;
const number = (value) => typeof value === "number";
const text = (value) => typeof value === "string";
const bool = (value) => typeof value === "boolean";
const maybe = (kind) => (value) => value === null || kind(value);
const oneOf = (...words) => (value) => words.includes(value);
const list = (kind, least = 0, most = MOST_PARTS) => (value) =>
  Array.isArray(value) && least <= value.length && value.length <= most && value.every(kind);
const tuple = (...kinds) => (value) =>
  Array.isArray(value) && value.length === kinds.length && kinds.every((kind, n) => kind(value[n]));

const rows = tuple(text, int, int, int, int);
const affine = tuple(rows, maybe(text));
const part = tuple(int, int, list(int, 0, 8), int, maybe(rows), maybe(text));
const place = tuple(int, (size) => int(size) && size >= 1);
const machine = tuple(list(affine, 1), int, int, int, list(part), text, list(place, 1));
const layer = tuple(list(machine, 1, 2), bool, bool);
const feature = tuple(int, int, int, int, int, maybe(affine), number);
const attention = tuple(
  ...[maybe(affine), maybe(affine), maybe(text), maybe(affine), bool, int, number, int, number, bool, maybe(text)],
  ...[maybe(affine), list(feature)],
);
const encoder = tuple(list(layer, 1), bool, bool);
const from = oneOf("zeros", "summary", "mean", "finals");
const first = tuple(int, from, list(tuple(int, int)), maybe(affine), oneOf("", "tanh", "relu"), int);
const program = tuple(encoder, maybe(attention), list(first), machine, int);

export const isProgram = (data) => program(data) && data[2].length === data[3][6].length && cellsAgree(data[0][0]);

/** Cells of a layer have states of the same sizes, one or two of them. */
function cellsAgree(layers) {
  const sizes = (cell) => JSON.stringify(cell[6].map(([, size]) => size));
  return layers.every(([cells]) => cells[0][6].length <= 2 && sizes(cells[0]) === sizes(cells.at(-1)));
}
