// Prepares what a decoder attends to, from annotations [B, J, H] (engine/recurrent.py).

import { concatenateColumns, dequantize, roundUp } from "./matrices.js";

/** Convert the attention of a program to an object with named fields. */
export function readAttention(data, readWeight) {
  const [projection, keys, positions, values, words, heads, scale, reach, spread, ...rest] = data;
  const [follows, vector, place, features] = rest;
  let positionKeys = null;
  if (positions !== null) {
    positionKeys = { ...readWeight(positions) };
    if (positionKeys.scale) {
      const { values: bytes, scale: factors, columns } = positionKeys;
      positionKeys.values = dequantize(bytes, factors, columns);
    }
  }
  return {
    projection,
    keys,
    positionKeys, // keys that depend only on the position
    values,
    words, // true if values contain the embedded words
    heads,
    scale,
    reach,
    spread,
    follows, // true if the window follows the target position
    vector,
    place,
    features: features.map(([units, neighbours, keeps, fixed, kept, layer, fertility]) => ({
      sizes: [units, neighbours, keeps, fixed, kept],
      layer,
      fertility,
    })),
  };
}

/**
 * Return [keys, values, mask, window centres, prepared features]; null for each that the model does not have.
 * @param {Float32Array} annotations [B, J, H]
 * @param {Float32Array} x Embedded words [B, J, E].
 */
export function attentionInputs(attention, layout, annotations, x, lengths, J) {
  if (!attention) return [null, null, null, null, null];
  const rows = lengths.length * J;
  const positions = lengths.flatMap((length) => Array.from({ length: J }, (_, j) => [j, length]));
  const mask = Uint8Array.from(positions, ([j, length]) => j < length);
  const withColumns = (array) => [array, array.length / rows];
  const keys = attentionKeys(attention, layout, annotations, mask, positions, lengths.length, J);
  let values = layout.affine(attention.values, annotations);
  if (attention.words) values = concatenateColumns([withColumns(values), withColumns(x)], rows);
  const centres = attention.follows
    ? Float32Array.from(positions, ([j, length]) => Math.min(j, length - 1))
    : null;
  const features = attention.features.map((feature) =>
    withColumns(prepareFeature(feature, layout, annotations, rows)),
  );
  const prepared = features.length ? concatenateColumns(features, rows) : null;
  return [keys, values, mask, centres, prepared];
}

function attentionKeys(attention, layout, annotations, mask, positions, B, J) {
  let keys = layout.affine(attention.keys, annotations);
  if (attention.positionKeys !== null) keys = keysOfPositions(attention.positionKeys, mask, B, J);
  if (!attention.place) return keys;
  const logPositions = positions.flatMap(([j, length]) => [Math.log1p(j + 1), Math.log1p(length)]);
  const terms = layout.affine(attention.place, Float32Array.from(logPositions));
  if (terms.length !== keys.length) layout.refuse();
  return keys.map((value, n) => value + terms[n]);
}

/** Return the keys of positions; positions beyond the table are removed from the mask. */
function keysOfPositions({ values, rows, columns }, mask, B, J) {
  const keys = new Float32Array(B * J * columns);
  const known = Math.min(J, rows);
  for (let b = 0; b < B; b++) {
    keys.set(values.subarray(0, known * columns), b * J * columns);
    mask.fill(0, b * J + known, (b + 1) * J);
  }
  return keys;
}

/** Return what a feature computes once per sentence: the inputs of a GRU's gates, or divisors of sums [rows, 1]. */
function prepareFeature({ sizes: [units], layer, fertility }, layout, annotations, rows) {
  if (!layer) return new Float32Array(rows).fill(1);
  const projected = layout.affine(layer, annotations);
  if (projected.length !== rows * (3 * units || 1)) layout.refuse();
  if (!units) {
    const divisor = (value) => Math.fround(1 + Math.fround(Math.exp(-value))) / Math.fround(fertility);
    return projected.map(divisor);
  }
  const paddedUnits = roundUp(units);
  const gates = new Float32Array(3 * rows * paddedUnits);
  for (let n = 0; n < 3 * rows; n++) {
    gates.set(projected.subarray(n * units, (n + 1) * units), n * paddedUnits);
  }
  return gates;
}
