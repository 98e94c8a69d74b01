// Operations on flat arrays of matrix rows.

const UNIT_MULTIPLE = 16; // the engine pads layer sizes to multiples of it (engine/structs.py)

export const sum = (values) => values.reduce((total, value) => total + value, 0);
export const roundUp = (units) => Math.ceil(units / UNIT_MULTIPLE) * UNIT_MULTIPLE;

/** Concatenate typed arrays of one type. */
export function concatenate(arrays) {
  const Type = arrays[0]?.constructor ?? Float32Array;
  const result = new Type(sum(arrays.map((array) => array.length)));
  let offset = 0;
  for (const array of arrays) {
    result.set(array, offset);
    offset += array.length;
  }
  return result;
}

/** Convert rows of bytes to floats. */
export function dequantize(values, scale, columns) {
  return Float32Array.from(values, (value, n) => value * scale[Math.floor(n / columns)]);
}

/**
 * Concatenate matrices along their columns.
 * @param {[Float32Array, number][]} matrices Values and columns of each.
 */
export function concatenateColumns(matrices, rows) {
  if (matrices.length === 1) return matrices[0][0];
  const totalColumns = sum(matrices.map(([, columns]) => columns));
  const result = new Float32Array(rows * totalColumns);
  let offset = 0;
  for (const [values, columns] of matrices) {
    for (let n = 0; n < rows; n++) {
      result.set(values.subarray(n * columns, (n + 1) * columns), n * totalColumns + offset);
    }
    offset += columns;
  }
  return result;
}

/** Reverse the first words of each sentence in x [B, J, E], given their numbers; other positions stay in place. */
export function reverseWords(x, words, J) {
  const E = x.length / (words.length * J);
  const result = x.slice();
  words.forEach((count, b) => {
    for (let j = 0; j < count; j++) {
      const from = (b * J + count - 1 - j) * E;
      result.set(x.subarray(from, from + E), (b * J + j) * E);
    }
  });
  return result;
}

/** Return the annotation of the last position of each sentence: [B, J, H] -> [B, H]. */
export function lastAnnotations(annotations, lengths, J) {
  const H = annotations.length / (lengths.length * J);
  const last = new Float32Array(lengths.length * H);
  lengths.forEach((length, b) => {
    const from = (b * J + length - 1) * H;
    last.set(annotations.subarray(from, from + H), b * H);
  });
  return last;
}

/** Return the mean annotation of each sentence: [B, J, H] -> [B, H]. */
export function meanAnnotations(annotations, lengths, J) {
  const H = annotations.length / (lengths.length * J);
  const means = new Float32Array(lengths.length * H);
  lengths.forEach((length, b) => {
    for (let j = 0; j < length; j++) {
      for (let k = 0; k < H; k++) means[b * H + k] += annotations[(b * J + j) * H + k];
    }
    for (let k = 0; k < H; k++) means[b * H + k] /= length;
  });
  return means;
}
