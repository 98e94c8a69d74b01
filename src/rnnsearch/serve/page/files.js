// Whole files: sent, watched while they are translated, downloaded.

import * as api from "./api.js";
import { $, element, icon, saveAs } from "./dom.js";
import * as status from "./status.js";
import { state } from "./store.js";

const POLL = 400;
const KINDS = /\.(txt|tsv|tmx|po)$/i;

async function add(file) {
  if (!KINDS.test(file.name)) {
    status.show(`A file must be .txt, .tsv, .tmx or .po; got ${file.name}.`);
    return;
  }
  if (!state.model) {
    status.toast(`${file.name} was not sent: the server has not said yet what it translates`);
    return;
  }
  status.fine();
  const row = rowOf(file.name);
  $("jobs").prepend(row.item);
  try {
    row.id = (await api.sendFile(file, state.model)).id;
    await watch(row);
  } catch (error) {
    ended(row, error.message, true);
  }
}

function rowOf(name) {
  const row = {
    id: null,
    gone: false,
    bar: element("progress", { max: 1, value: 0, "aria-label": `Progress of ${name}` }),
    said: element("p", { className: "note", role: "status", textContent: "Sending" }),
    actions: element("div", { className: "actions" }),
    name,
  };
  row.cancel = element("button", { type: "button", className: "icon-button", title: "Cancel" }, icon("clear"));
  row.cancel.setAttribute("aria-label", `Cancel ${name}`);
  row.cancel.addEventListener("click", () => remove(row));
  row.actions.append(row.cancel);
  const title = element("p", { className: "name", textContent: name });
  row.item = element("li", { className: "card job" }, title, row.actions, row.said, row.bar);
  return row;
}

async function watch(row) {
  let failures = 0;
  while (!row.gone) {
    let now;
    try {
      now = await api.fileState(row.id);
      failures = 0;
    } catch (error) {
      if (error.status > 0 || ++failures > 20) throw error;
      row.said.textContent = "The server does not answer; asking again";
    }
    if (now?.state === "failed") return ended(row, now.error ?? "The file could not be translated.", true);
    if (now?.state === "done") return finished(row, now);
    if (now) progress(row, now);
    await new Promise((resolve) => setTimeout(resolve, POLL));
  }
}

function progress(row, now) {
  row.bar.value = now.segments ? now.done / now.segments : 0;
  row.said.textContent = now.state === "queued" ? "Waiting for its turn" : `${now.done} of ${now.segments} segments`;
}

function finished(row, now) {
  row.bar.value = 1;
  const left = now.left?.length ? `; too long and left empty: ${now.left.join(", ")}` : "";
  ended(row, `${now.segments} segment${now.segments === 1 ? "" : "s"} translated${left}`, false);
  const button = element("button", { type: "button", className: "button", textContent: "Download" });
  button.setAttribute("aria-label", `Download ${row.name}, translated`);
  button.addEventListener("click", () => download(row));
  row.actions.prepend(button);
}

function ended(row, said, isFault) {
  row.said.textContent = said;
  row.said.classList.toggle("is-fault", isFault);
  row.bar.hidden = true;
  row.cancel.title = "Remove";
  row.cancel.setAttribute("aria-label", `Remove ${row.name}`);
}

/** By a request of ours rather than a link, so that a server with keys gets its key. */
async function download(row) {
  try {
    const response = await api.fileResult(row.id);
    saveAs(await response.blob(), fileName(response) ?? row.name);
  } catch (error) {
    status.fault(error);
  }
}

function fileName(response) {
  const said = response.headers.get("Content-Disposition") ?? "";
  const encoded = /filename\*=utf-8''([^;]+)/i.exec(said)?.[1];
  return encoded ? decodeURIComponent(encoded) : /filename="([^"]+)"/i.exec(said)?.[1];
}

function remove(row) {
  row.gone = true;
  row.item.remove();
  if (row.id) api.dropFile(row.id).catch(() => {}); // what is gone already needs no telling
  $("file").focus();
}

export function start() {
  const drop = $("drop");
  $("file").addEventListener("change", () => {
    [...$("file").files].forEach(add);
    $("file").value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("is-over", kind === "dragover");
      if (kind === "drop") [...event.dataTransfer.files].forEach(add);
    });
  }
}
