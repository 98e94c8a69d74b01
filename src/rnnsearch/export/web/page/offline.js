// Features of the exported page: details of the model, and a service worker that stores the page on this device.

import { $, element } from "./dom.js";
import { on, state } from "./store.js";

/** Show what the model's file says about it: size, scores, licence and attribution. */
function showModelDetails() {
  const { name, about = {}, megabytes, precision, scores = [] } = state.model;
  const rows = [
    ["Model", `${name}: ${megabytes} MB, ${precision}`],
    ...scores,
    ["Licence", about.licence],
    ["Attribution", about.attribution],
  ];
  const items = rows
    .filter(([, value]) => value)
    .flatMap(([label, value]) => [
      element("dt", { textContent: label }),
      element("dd", { textContent: value, dir: "auto" }),
    ]);
  $("model-details").replaceChildren(...items);
}

async function registerServiceWorker() {
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    $("offline-status").textContent =
      "The page and its models are stored on this device and work offline.";
  } catch {
    // The page still works while there is a network.
  }
}

export function start() {
  $("about").hidden = false;
  on("model", showModelDetails);
  registerServiceWorker();
}
