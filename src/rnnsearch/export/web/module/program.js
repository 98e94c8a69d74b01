// Checks the structure of a program (engine/program.py): types and numbers of elements. Names and ranges are checked
// where they are used.

const MAX_ELEMENTS = 4096; // parts, states, features and layers
const MAX_POSITIONS = 8; // of a part
const MAX_INT = 2 ** 31;

const int = (value) => Number.isInteger(value) && Math.abs(value) < MAX_INT;
const positive = (value) => int(value) && value >= 1;
const number = (value) => typeof value === "number";
const string = (value) => typeof value === "string";
const boolean = (value) => typeof value === "boolean";
const optional = (check) => (value) => value === null || check(value);
const oneOf = (...values) => (value) => values.includes(value);
const list = (check, { min = 0, max = MAX_ELEMENTS } = {}) => (value) =>
  Array.isArray(value) && min <= value.length && value.length <= max && value.every(check);
const record = (fields) => {
  const checks = Object.values(fields);
  return (value) =>
    Array.isArray(value) && value.length === checks.length && checks.every((check, n) => check(value[n]));
};

// Records are lists; the fields are in the order of the classes in engine/program.py.
const block = record({ array: string, row: int, rows: int, column: int, columns: int });
const affine = record({ weight: block, bias: optional(string) });
const part = record({
  what: int,
  size: int,
  at: list(int, { max: MAX_POSITIONS }),
  before: int,
  weight: optional(block),
  own: optional(string),
});
const state = record({ at: int, size: positive });
const step = record({
  inputs: list(affine, { min: 1 }),
  sums: int,
  values: int,
  reads: int,
  parts: list(part),
  bias: string,
  states: list(state, { min: 1 }),
});
const encoderLayer = record({ cells: list(step, { min: 1, max: 2 }), adds: boolean, wide: boolean });
const encoder = record({ layers: list(encoderLayer, { min: 1 }), readsEnd: boolean, reverse: boolean });
const feature = record({
  units: int,
  neighbours: int,
  keeps: int,
  fixed: int,
  kept: int,
  layer: optional(affine),
  fertility: number,
});
const attention = record({
  projection: optional(affine),
  keys: optional(affine),
  positions: optional(string),
  values: optional(affine),
  words: boolean,
  heads: int,
  scale: number,
  reach: int,
  spread: number,
  follows: boolean,
  vector: optional(string),
  place: optional(affine),
  features: list(feature),
});
const initialState = record({
  size: int,
  of: oneOf("zeros", "summary", "mean", "last", "finals"),
  finals: list(record({ layer: int, part: int })),
  layer: optional(affine),
  function: oneOf("", "tanh", "relu"),
  begin: int,
});
const program = record({
  encoder,
  attention: optional(attention),
  first: list(initialState),
  step,
  readout: int,
});

/** Return true if JSON data has the structure of a program. */
export function isProgram(data) {
  if (!program(data)) return false;
  const [[layers], , initialStates, decoderStep] = data;
  return initialStates.length === statesOf(decoderStep).length && layers.every(hasEqualCells);
}

const statesOf = ([, , , , , , states]) => states;

/** Return true if the cells of a layer have one or two states, of the same sizes. */
function hasEqualCells([cells]) {
  const sizes = cells.map((cell) => JSON.stringify(statesOf(cell).map(([, size]) => size)));
  return statesOf(cells[0]).length <= 2 && sizes[0] === sizes.at(-1);
}
