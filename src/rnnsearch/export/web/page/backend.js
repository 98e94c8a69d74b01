// The back end of the exported page: the engine, in a worker on this device.
// Replaces backend.js of `rnnsearch serve` (serve/page), which documents the interface.

export * from "./engine-client.js";
export { start as startExtras } from "./offline.js";
