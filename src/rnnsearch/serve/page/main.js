// Entry point: starts the modules, then loads the list of models.

import * as alternatives from "./alternatives.js";
import { startExtras } from "./backend.js";
import { $ } from "./dom.js";
import * as heatMap from "./heatmap-dialog.js";
import * as models from "./models.js";
import * as moreSources from "./more-sources.js";
import * as notes from "./notes.js";
import * as shortcuts from "./shortcuts.js";
import * as simultaneous from "./simultaneous.js";
import * as source from "./source.js";
import * as status from "./status.js";
import * as target from "./target.js";
import * as wordMenu from "./word-menu.js";
import * as writer from "./writer.js";

// The target comes before the source: both listen to new translations, and the source then scrolls the rendered target.
// Simultaneous translation forgets the sentences of the previous model before the source translates with another one.
const modules = [
  status, target, moreSources, simultaneous, source, notes, wordMenu, alternatives, writer, heatMap, shortcuts,
];
for (const module of modules) module.start();
startExtras();
$("source").focus({ preventScroll: true });
await models.start();
