// Rows of numbers, one after another in an array.

const UNIT = 16; // sizes are rounded up to this (engine/packed.py)

export const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);
export const whole = (units) => Math.ceil(units / UNIT) * UNIT;

/** Arrays one behind the other, of the type of the first. */
export function joined(arrays) {
  const all = new (arrays[0]?.constructor ?? Float32Array)(sum(arrays.map((array) => array.length)));
  let at = 0;
  for (const array of arrays) {
    all.set(array, at);
    at += array.length;
  }
  return all;
}

/** Rows of bytes as numbers. */
export const scaled = (values, scale, width) => Float32Array.from(values, (value, n) => value * scale[Math.floor(n / width)]);

/** Rows of so many numbers as one array, each one's parts side by side: [values, width] of each part. */
export function beside(parts, count) {
  if (parts.length === 1) return parts[0][0];
  const width = sum(parts.map(([, own]) => own));
  const all = new Float32Array(count * width);
  let at = 0;
  for (const [values, own] of parts) {
    for (let n = 0; n < count; n++) all.set(values.subarray(n * own, (n + 1) * own), n * width + at);
    at += own;
  }
  return all;
}

/** Each sentence's words [B, J, E] from last to first, its end symbol last. */
export function turned(x, lengths, J) {
  const E = x.length / (lengths.length * J);
  const all = x.slice();
  lengths.forEach((length, b) => {
    for (let j = 0; j + 1 < length; j++) {
      const [from, to] = [b * J + length - 2 - j, b * J + j].map((place) => place * E);
      all.set(x.subarray(from, from + E), to);
    }
  });
  return all;
}

/** The mean of each sentence's annotations. */
export function means(annotations, lengths, J) {
  const H = annotations.length / (lengths.length * J);
  const all = new Float32Array(lengths.length * H);
  lengths.forEach((length, b) => {
    for (let j = 0; j < length; j++) for (let k = 0; k < H; k++) all[b * H + k] += annotations[(b * J + j) * H + k];
    for (let k = 0; k < H; k++) all[b * H + k] /= length;
  });
  return all;
}
