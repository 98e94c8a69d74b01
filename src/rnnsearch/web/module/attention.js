// What a decoder attends to (engine/recurrent.py), of annotations [B, J, H].

import { beside, scaled, whole } from "./rows.js";

/** An attention as its program has it, by names. */
export function attentionOf(given, weight) {
  const [projection, keys, positions, values, words, heads, scale, reach, spread, follows, vector, place, ...rest] = given;
  const features = rest[0].map(([units, neighbours, keeps, fixed, kept, layer, fertility]) => {
    return { sizes: [units, neighbours, keeps, fixed, kept], layer, fertility };
  });
  const table = positions === null ? null : { ...weight(positions) };
  if (table?.scale) table.values = scaled(table.values, table.scale, table.columns);
  return { projection, keys, positions: table, values, words, heads, scale, reach, spread, follows, vector, place, features };
}

/** Keys, values, mask, centres, and what features prepare, of annotations [B, J, H] and words; nothing without attention. */
export function seen(attention, layout, annotations, x, lengths, J) {
  if (!attention) return [null, null, null, null, null];
  const B = lengths.length;
  const places = [...Array(B * J).keys()].map((n) => [Math.floor(n / J), n % J]);
  const mask = Uint8Array.from(places, ([b, j]) => j < lengths[b]);
  let keys = layout.affine(attention.keys, annotations);
  if (attention.positions !== null) keys = positions(attention.positions, mask, B, J);
  if (attention.place) {
    const told = Float32Array.from(places.flatMap(([b, j]) => [Math.log1p(j + 1), Math.log1p(lengths[b])]));
    const share = layout.affine(attention.place, told);
    if (share.length !== keys.length) layout.refuse();
    keys = keys.map((value, n) => value + share[n]);
  }
  const values = layout.affine(attention.values, annotations);
  const each = (array) => [array, array.length / (B * J)];
  const made = attention.features.map((feature) => each(prepared(feature, layout, annotations, B * J)));
  return [
    keys,
    attention.words ? beside([each(values), each(x)], B * J) : values,
    mask,
    attention.follows ? Float32Array.from(places, ([b, j]) => Math.min(j, lengths[b] - 1)) : null,
    made.length ? beside(made, B * J) : null,
  ];
}

/** A key for each position that has one; the mask loses the others. */
function positions({ values, rows, columns }, mask, B, J) {
  const keys = new Float32Array(B * J * columns);
  const known = Math.min(J, rows);
  for (let b = 0; b < B; b++) {
    keys.set(values.subarray(0, known * columns), b * J * columns);
    mask.fill(0, b * J + known, (b + 1) * J);
  }
  return keys;
}

/** What a feature computes once a sentence: [B, J, 1], or of a GRU its gates, each in whole vectors. */
function prepared({ sizes: [units], layer, fertility }, layout, annotations, count) {
  if (!layer) return new Float32Array(count).fill(1);
  const made = layout.affine(layer, annotations);
  if (made.length !== count * (3 * units || 1)) layout.refuse();
  if (!units) return made.map((value) => Math.fround(1 + Math.fround(Math.exp(-value))) / Math.fround(fertility));
  const wide = whole(units);
  const gates = new Float32Array(3 * count * wide);
  for (let n = 0; n < 3 * count; n++) gates.set(made.subarray(n * units, (n + 1) * units), n * wide);
  return gates;
}
