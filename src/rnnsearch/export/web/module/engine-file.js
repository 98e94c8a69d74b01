// Reads an engine file (engine/file.py): a deflated JSON header, followed by arrays.

import { ALIGNMENT, readArray, TYPES } from "./arrays.js";
import { RnnsearchError } from "./errors.js";

const MAGIC = [...new TextEncoder().encode("RNNENGN\n")];
const PREAMBLE = 24; // bytes: magic, size of the header, size of the inflated header
const FORMATS = [1, 2]; // format 1 has no 4-bit and no sparse arrays
const MAX_HEADER_BYTES = 64 * 2 ** 20;
const SYSTEMS = ["rnnsearch", "recurrent"];

/** Precisions of matrix products; the engine knows them by index. */
export const PRECISIONS = ["fp32", "bf16", "int8"];

export const damagedHeader = () =>
  new RnnsearchError("the engine file's header is damaged: export the model again");

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * Read an engine file. Throw an RnnsearchError if it is truncated, modified, of a later version, or no engine file.
 * @param {Uint8Array} bytes
 * @returns {Promise<{header: object, precision: number, has: (name) => boolean, weight: (name) => Weight,
 *   vector: (name) => Float32Array}>} The header, the index of the precision, and functions that read arrays.
 */
export async function readEngineFile(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < PREAMBLE || MAGIC.some((byte, n) => bytes[n] !== byte)) {
    throw new RnnsearchError("this is not an engine file written by `rnnsearch export`");
  }
  const [size, inflatedSize] = [8, 16].map((offset) => Number(view.getBigUint64(offset, true)));
  const end = PREAMBLE + size;
  if (Math.max(size, inflatedSize) > MAX_HEADER_BYTES || end > bytes.length) throw damagedHeader();
  const header = await readHeader(bytes.subarray(PREAMBLE, end), inflatedSize);
  if (!FORMATS.includes(header.format)) {
    const got = String(header.format).slice(0, 20);
    throw new RnnsearchError(`the engine file's format must be ${FORMATS.join(" or ")}; got ${got}`);
  }
  const payload = bytes.subarray(Math.ceil(end / ALIGNMENT) * ALIGNMENT);
  if ((await sha256(payload)) !== header.sha256) {
    throw new RnnsearchError("the engine file is truncated or was modified: its checksum does not match");
  }
  if (!SYSTEMS.includes(header.system)) {
    throw new RnnsearchError(`the engine file's system must be one of ${SYSTEMS.join(", ")}`);
  }
  const precision = PRECISIONS.indexOf(header.kind);
  if (precision < 0 || !isObject(header.arrays)) throw damagedHeader();
  const array = (name) => readNamed(payload, header.arrays, name);
  const has = (name) => Object.hasOwn(header.arrays, name);
  const weight = cached((name) => readWeight(array, name));
  const vector = cached((name) => readVector(array, name));
  return { header, precision, has, weight, vector };
}

async function readHeader(deflated, inflatedSize) {
  const chunks = [];
  let size = 0;
  let header = null;
  try {
    const stream = new Blob([deflated]).stream();
    const reader = stream.pipeThrough(new DecompressionStream("deflate")).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      chunks.push(value);
      size += value.length;
      if (size > inflatedSize) {
        await reader.cancel();
        throw damagedHeader();
      }
    }
    const inflated = await new Blob(chunks).arrayBuffer();
    const text = new TextDecoder("utf-8", { fatal: true }).decode(inflated);
    if (size === inflatedSize) header = JSON.parse(text);
  } catch {
    throw damagedHeader();
  }
  if (!isObject(header)) throw damagedHeader();
  return header;
}

async function sha256(payload) {
  if (!globalThis.crypto?.subtle) {
    throw new RnnsearchError("models can only be checked in a secure context (https or localhost)");
  }
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", payload));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return {values, shape} of an array, or null if there is no array of this name. */
function readNamed(payload, arrays, name) {
  if (!Object.hasOwn(arrays, name)) return null;
  const entry = arrays[name];
  if (!Array.isArray(entry)) throw damagedHeader();
  const [type] = entry;
  if (!TYPES.includes(type)) {
    const got = String(type).slice(0, 20);
    throw new RnnsearchError(`array types must be among ${TYPES.join(", ")} in a browser; got ${got}`);
  }
  try {
    return readArray(payload, entry);
  } catch (error) {
    if (error instanceof RangeError) throw damagedHeader();
    throw error;
  }
}

function cached(read) {
  const results = new Map();
  return (name) => {
    if (!results.has(name)) results.set(name, read(name));
    return results.get(name);
  };
}

/**
 * Read a matrix.
 * @typedef {{rows: number, columns: number, values: Int8Array | Float32Array, scale: Float32Array | null}} Weight
 *   Bytes have a scale per row, floats have none.
 * @returns {Weight}
 */
function readWeight(array, name) {
  const { values, shape } = array(name) ?? {};
  const scale = array(`${name}.scale`)?.values ?? null;
  const [rows, columns] = shape?.length === 2 ? shape : [];
  const valid =
    values instanceof Int8Array
      ? scale instanceof Float32Array && scale.length === rows
      : scale === null;
  if (!rows || !valid) throw damagedHeader();
  return { rows, columns, values, scale };
}

function readVector(array, name) {
  const { values, shape } = array(name) ?? {};
  if (shape?.length !== 1 || !(values instanceof Float32Array)) throw damagedHeader();
  return values;
}
