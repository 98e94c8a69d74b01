// Where the page begins: every part is started once, then the models are asked for.

import * as alternatives from "./alternatives.js";
import { $ } from "./dom.js";
import * as files from "./files.js";
import * as map from "./mapdialog.js";
import * as models from "./models.js";
import * as shortcuts from "./shortcuts.js";
import * as source from "./source.js";
import * as status from "./status.js";
import * as tabs from "./tabs.js";
import * as target from "./target.js";
import * as wordmenu from "./wordmenu.js";
import * as writer from "./writer.js";

// the target before the source, which scrolls it to where one types
for (const part of [status, tabs, target, source, wordmenu, alternatives, writer, map, files, shortcuts]) part.start();
$("source").focus({ preventScroll: true });
await models.start();
