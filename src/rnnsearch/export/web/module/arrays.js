// Reads the arrays of an engine file: dense, sparse, or with 4-bit values (engine/stored.py).
// Every function throws a RangeError for an array that is not within the payload.

const GROUP_SIZE = 16; // 4-bit values that share a factor
const FACTOR_DIVISOR = 8;
const MAX_INT4 = 7;
const MAX_INT8 = 127;
const DENSE_TYPES = { int8: Int8Array, bf16: Uint16Array, fp32: Float32Array };

export const ALIGNMENT = 64; // bytes
export const TYPES = [...Object.keys(DENSE_TYPES), "int4"];

const isPositive = (value) => Number.isSafeInteger(value) && value >= 1;
const isSize = (value) => Number.isSafeInteger(value) && value >= 0;
const product = (values) => values.reduce((total, value) => total * value, 1);

/**
 * Read an array by its entry in the header.
 * @returns {{values: Int8Array | Float32Array, shape: number[]}}
 */
export function readArray(payload, [type, shape, offset, form = "dense"]) {
  const validShape = Array.isArray(shape) && (shape.length === 1 || shape.length === 2);
  if (!validShape || !shape.every(isPositive)) throw new RangeError();
  if (!isSize(offset) || offset % ALIGNMENT) throw new RangeError();
  if (form !== "dense" && form !== "sparse") throw new RangeError();
  if (type === "int4") return { values: readInt4(payload, shape, offset), shape };
  const read = form === "sparse" ? readSparse : readDense;
  const values = read(payload, DENSE_TYPES[type], product(shape), offset);
  return { values: type === "bf16" ? toFloat32(values) : values, shape };
}

/** Copy bytes of the payload. */
function slice(payload, offset, size) {
  if (!isSize(size) || offset + size > payload.length) throw new RangeError();
  return payload.slice(offset, offset + size);
}

function readDense(payload, Type, count, offset) {
  return new Type(slice(payload, offset, count * Type.BYTES_PER_ELEMENT).buffer);
}

/** Read a bit mask of the non-zero values (lowest bit of a byte first), followed by these values. */
function readSparse(payload, Type, count, offset) {
  const mask = slice(payload, offset, Math.ceil(count / 8));
  const isNonZero = (n) => (mask[n >> 3] >> (n & 7)) & 1;
  let nonZeros = 0;
  for (let n = 0; n < count; n++) nonZeros += isNonZero(n);
  const stored = readDense(payload, Type, nonZeros, offset + mask.length);
  const values = new Type(count);
  for (let n = 0, next = 0; n < count; n++) if (isNonZero(n)) values[n] = stored[next++];
  return values;
}

function toFloat32(bf16) {
  return new Float32Array(Uint32Array.from(bf16, (bits) => bits << 16).buffer);
}

/**
 * Read rows of 4-bit values as bytes. A row is a factor per group, then two values per byte, the lower half first.
 * A value times its factor / 8, rounded, is a byte.
 */
function readInt4(payload, [rows, columns = NaN], offset) {
  const groups = Math.ceil(columns / GROUP_SIZE);
  const rowSize = groups + Math.ceil(columns / 2);
  const stored = slice(payload, offset, rows * rowSize);
  const values = new Int8Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const start = row * rowSize;
    for (let n = 0; n < columns; n++) {
      const nibble = (stored[start + groups + (n >> 1)] >> (4 * (n & 1))) & 15;
      const signed = nibble > MAX_INT4 ? nibble - 16 : nibble;
      const factor = stored[start + Math.floor(n / GROUP_SIZE)];
      const value = roundHalfToEven((signed * factor) / FACTOR_DIVISOR);
      values[row * columns + n] = Math.max(-MAX_INT8, Math.min(MAX_INT8, value));
    }
  }
  return values;
}

function roundHalfToEven(value) {
  const below = Math.floor(value);
  const fraction = value - below;
  return fraction > 0.5 || (fraction === 0.5 && below % 2 !== 0) ? below + 1 : below;
}
