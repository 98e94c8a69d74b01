// The engine file (engine/file.py): a header in JSON, deflated, and arrays behind it. Nothing is read but what lies in it.

import { ALIGNED, arrayOf, TYPES } from "./arrays.js";
import { RnnsearchError } from "./errors.js";

const MAGIC = [...new TextEncoder().encode("RNNENGN\n")];
const FORMATS = [1, 2]; // the first has no numbers of 4 bits and nothing sparse
const MOST_HEADER = 64 * 2 ** 20;
const KINDS = ["fp32", "bf16", "int8"];
const SYSTEMS = ["rnnsearch", "recurrent"];
export const damaged = () => new RnnsearchError("the engine file's header is damaged: export the model again");
const foreign = () => new RnnsearchError("this is no engine file, as `rnnsearch export` writes it");

/** What a file says: {header, kind, has(name), weight(name), row(name)}. Errors: RnnsearchError for one that is cut, changed,
 * of a later version, or no such file. */
export async function read(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 24 || MAGIC.some((byte, n) => bytes[n] !== byte)) throw foreign();
  const [length, inflated] = [8, 16].map((at) => Number(view.getBigUint64(at, true)));
  if (Math.max(length, inflated) > MOST_HEADER || 24 + length > bytes.length) throw damaged();
  const header = await headerOf(bytes.subarray(24, 24 + length), inflated);
  if (!FORMATS.includes(header.format)) {
    const told = `${FORMATS.join(" or ")}, which this version reads; got ${String(header.format).slice(0, 20)}`;
    throw new RnnsearchError(`the engine file must be of format ${told}`);
  }
  const payload = bytes.subarray(Math.ceil((24 + length) / ALIGNED) * ALIGNED);
  if ((await digest(payload)) !== header.sha256) {
    throw new RnnsearchError("the engine file is cut or was changed: its arrays are not those that were written");
  }
  if (!SYSTEMS.includes(header.system)) {
    throw new RnnsearchError(`the engine file must hold a system that this version knows (${SYSTEMS.join(", ")})`);
  }
  const kind = KINDS.indexOf(header.kind);
  if (kind < 0 || !isObject(header.arrays)) throw damaged();
  const array = (name) => named(payload, header.arrays, name);
  const [weight, row] = [weightOf, rowOf].map((read) => once((name) => read(array, name)));
  return { header, kind, has: (name) => Object.hasOwn(header.arrays, name), weight, row };
}

async function headerOf(deflated, inflated) {
  const parts = [];
  let size = 0;
  let header = null;
  try {
    const reader = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      parts.push(value);
      if ((size += value.length) > inflated) {
        await reader.cancel();
        throw damaged();
      }
    }
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await new Blob(parts).arrayBuffer());
    if (size === inflated) header = JSON.parse(text);
  } catch {
    throw damaged();
  }
  if (!isObject(header)) throw damaged();
  return header;
}

async function digest(payload) {
  if (!globalThis.crypto?.subtle) {
    throw new RnnsearchError("a model can be checked only in a secure page: one that comes by https, or from this machine");
  }
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", payload));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** {values, shape} of an array; null where there is none of that name. */
function named(payload, arrays, name) {
  if (!Object.hasOwn(arrays, name)) return null;
  const entry = arrays[name];
  if (!Array.isArray(entry)) throw damaged();
  if (!TYPES.includes(entry[0])) {
    const told = String(entry[0]).slice(0, 20);
    throw new RnnsearchError(`the engine file has arrays of a type that the browser's engine does not read: ${told}`);
  }
  try {
    return arrayOf(payload, entry);
  } catch (error) {
    if (error instanceof RangeError) throw damaged();
    throw error;
  }
}

/** What it made of a name before, if it did. */
function once(make) {
  const known = new Map();
  return (name) => {
    if (!known.has(name)) known.set(name, make(name));
    return known.get(name);
  };
}

/** {rows, columns, values, scale} of a matrix: bytes with a factor for each row, or numbers without. */
function weightOf(array, name) {
  const { values, shape } = array(name) ?? {};
  const scale = array(`${name}.scale`)?.values;
  const [rows, columns] = shape?.length === 2 ? shape : [];
  const fits = values instanceof Int8Array ? scale instanceof Float32Array && scale.length === rows : !scale;
  if (!rows || !fits) throw damaged();
  return { rows, columns, values, scale: scale ?? null };
}

/** The numbers of an array of one axis. */
function rowOf(array, name) {
  const { values, shape } = array(name) ?? {};
  if (shape?.length !== 1 || !(values instanceof Float32Array)) throw damaged();
  return values;
}
