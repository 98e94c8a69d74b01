// How arrays stand in an engine file: whole, as numbers of 4 bits, or without their zeros (engine/stored.py). Nothing is read
// but what lies in the payload. Errors are RangeErrors here.

const GROUP = 16; // numbers of 4 bits with a factor of their own
const [EIGHTHS, TOP] = [8, 7];
export const ALIGNED = 64;
const RAW = { int8: Int8Array, bf16: Uint16Array, fp32: Float32Array };
export const TYPES = [...Object.keys(RAW), "int4"];

const isCount = (value) => Number.isSafeInteger(value) && value >= 1;
const product = (numbers) => numbers.reduce((all, n) => all * n, 1);

/** {values, shape}: Int8Array or Float32Array. entry: what the header says: [type, shape, begin, form]. */
export function arrayOf(payload, [type, shape, begin, form = "dense"]) {
  if (!Array.isArray(shape) || shape.length < 1 || shape.length > 2 || !shape.every(isCount)) throw new RangeError();
  if (!isCount(begin + 1) || begin % ALIGNED || !["dense", "sparse"].includes(form)) throw new RangeError();
  if (type === "int4") return { values: halves(payload, shape, begin), shape };
  const values = (form === "sparse" ? sparse : dense)(payload, RAW[type], product(shape), begin);
  return { values: type === "bf16" ? widened(values) : values, shape };
}

/** So many bytes, on their own. */
function cut(payload, begin, size) {
  if (!isCount(size + 1) || begin + size > payload.length) throw new RangeError();
  return payload.slice(begin, begin + size);
}

const dense = (payload, Numbers, count, begin) =>
  new Numbers(cut(payload, begin, count * Numbers.BYTES_PER_ELEMENT).buffer);

/** A bit for each number, the lowest of a byte first, whether it is not zero, and then those that are not. */
function sparse(payload, Numbers, count, begin) {
  const there = cut(payload, begin, Math.ceil(count / 8));
  const isThere = (n) => (there[n >> 3] >> (n & 7)) & 1;
  let some = 0;
  for (let n = 0; n < count; n++) some += isThere(n);
  const given = dense(payload, Numbers, some, begin + there.length);
  const values = new Numbers(count);
  for (let n = 0, next = 0; n < count; n++) if (isThere(n)) values[n] = given[next++];
  return values;
}

const widened = (upper) => new Float32Array(Uint32Array.from(upper, (half) => half << 16).buffer);

/** Rows of a factor for each group, and then numbers of 4 bits, two in a byte, the lower half first; number * factor / 8,
 * rounded, is a byte. */
function halves(payload, [rows, width = NaN], begin) {
  const groups = Math.ceil(width / GROUP);
  const wide = groups + Math.ceil(width / 2);
  const stored = cut(payload, begin, rows * wide);
  const values = new Int8Array(rows * width);
  for (let row = 0; row < rows; row++) {
    for (let n = 0; n < width; n++) {
      const half = (stored[row * wide + groups + (n >> 1)] >> (4 * (n & 1))) & 15;
      const number = ((half > TOP ? half - 16 : half) * stored[row * wide + Math.floor(n / GROUP)]) / EIGHTHS;
      values[row * width + n] = Math.max(-127, Math.min(127, rounded(number)));
    }
  }
  return values;
}

/** To the nearest integer, of two as near the even one. */
function rounded(number) {
  const below = Math.floor(number);
  const over = number - below;
  return over > 0.5 || (over === 0.5 && below % 2 !== 0) ? below + 1 : below;
}
