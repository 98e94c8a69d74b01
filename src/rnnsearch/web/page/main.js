// Where the off-line page begins: the parts of the page of `rnnsearch serve` that need no server, what is said of the
// models, and the service worker that keeps all of it on this device.

import * as alternatives from "./alternatives.js";
import { $, element } from "./dom.js";
import * as map from "./mapdialog.js";
import * as models from "./models.js";
import * as shortcuts from "./shortcuts.js";
import * as source from "./source.js";
import * as status from "./status.js";
import { on, state } from "./store.js";
import * as target from "./target.js";
import * as wordmenu from "./wordmenu.js";
import * as writer from "./writer.js";

/** What a model's file says of it: its scores, its licence and whom it is owed to. */
function about() {
  const { about: said = {}, megabytes, precision, scores = [] } = state.model;
  const rows = [
    ["Model", `${state.model.name}: ${megabytes} MB, ${precision}`],
    ...scores.map(([name, value]) => [name, value]),
    ["Licence", said.licence],
    ["Thanks to", said.attribution],
  ];
  $("about-rows").replaceChildren(
    ...rows.filter(([, value]) => value).flatMap(([name, value]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: value, dir: "auto" }),
    ]),
  );
}

async function keep() {
  const said = $("kept");
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    said.textContent = "This page and its models are kept on this device: it works without a network, too.";
  } catch {
    // it works all the same, as long as there is a network
  }
}

for (const part of [status, target, source, wordmenu, alternatives, writer, map, shortcuts]) part.start();
on("model", about);
$("source").focus({ preventScroll: true });
keep();
await models.start();
