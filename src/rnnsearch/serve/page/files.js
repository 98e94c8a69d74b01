// File translation: upload, progress and download.

import { $, element, icon, saveAs } from "./dom.js";
import * as server from "./server-api.js";
import * as status from "./status.js";
import { state } from "./store.js";
import * as tabs from "./tabs.js";
import { asSentence } from "./text.js";

const POLL_INTERVAL = 400; // milliseconds
const MAX_FAILED_POLLS = 20;
const SUPPORTED = /\.(txt|tsv|tmx|xliff|xlf|pot?|x?html|htm|srt|vtt)$/i;

/** Return why a file cannot be uploaded, or "". */
function rejection(file) {
  if (!SUPPORTED.test(file.name)) {
    return "Unsupported file type. Supported types are .txt, .tsv, .tmx, .xliff, .po, .html, .srt and .vtt.";
  }
  return state.model ? "" : "Not uploaded, because the languages are still loading. Choose the file again.";
}

/** Add a file to the list, where its messages stay until the user removes it. */
async function add(file) {
  const job = createJob(file.name);
  $("jobs").prepend(job.item);
  const reason = rejection(file);
  if (reason) end(job, reason, true);
  else await translate(job, file);
}

async function translate(job, file) {
  job.message.textContent = "Uploading…";
  try {
    job.id = (await server.uploadFile(file, state.model)).id;
    await watch(job);
  } catch (error) {
    if (!status.needsKey(error)) {
      end(job, withoutName(error.message, file.name), true);
      return;
    }
    job.message.textContent = "Waiting for the API key…";
    status.showError(error, () => !job.removed && translate(job, file));
  }
}

/** Create the list item of a file, with its progress bar and buttons. */
function createJob(name) {
  const job = {
    id: null,
    name,
    removed: false,
    bar: element("progress", { max: 1, value: 0, "aria-label": `Progress of ${name}` }),
    message: element("p", { className: "note", role: "status" }),
    actions: element("div", { className: "actions" }),
  };
  const properties = { type: "button", className: "icon-button", title: "Cancel" };
  job.cancel = element("button", properties, icon("clear"));
  job.cancel.setAttribute("aria-label", `Cancel ${name}`);
  job.cancel.addEventListener("click", () => remove(job));
  job.actions.append(job.cancel);
  const title = element("p", { className: "file-name", textContent: name });
  const children = [title, job.actions, job.message, job.bar];
  job.item = element("li", { className: "card job" }, ...children);
  return job;
}

/** Poll the server until the file is done, has failed, or was removed. */
async function watch(job) {
  let failedPolls = 0;
  while (!job.removed) {
    let current = null;
    try {
      current = await server.fileStatus(job.id);
      failedPolls = 0;
    } catch (error) {
      failedPolls += 1;
      if (error.status > 0 || failedPolls > MAX_FAILED_POLLS) throw error;
      job.message.textContent = "The server is not responding. Retrying…";
    }
    if (current?.state === "failed") {
      end(job, withoutName(current.error ?? "The file could not be translated.", job.name), true);
      return;
    }
    if (current?.state === "done") {
      finish(job, current);
      return;
    }
    if (current) showProgress(job, current);
    await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
  }
}

/** Return an error message without the name of the file, which is shown above it. */
function withoutName(message, name) {
  const start = `${name}: `;
  const startsWithName = message.toLowerCase().startsWith(start.toLowerCase());
  return asSentence(startsWithName ? message.slice(start.length) : message);
}

function showProgress(job, { state: jobState, done, segments }) {
  job.bar.value = segments ? done / segments : 0;
  job.message.textContent = jobState === "queued" ? "Queued" : `${done} of ${segments} segments`;
}

function finish(job, { segments, left: skipped, untranslated }) {
  job.bar.value = 1;
  const unit = segments === 1 ? "segment" : "segments";
  const note = skipped?.length ? `; too long and left empty: ${skipped.join(", ")}` : "";
  const kept = untranslated?.length ? `; placeholders lost, so not translated: ${untranslated.join(", ")}` : "";
  end(job, `${segments} ${unit} translated${note}${kept}`, false);
  const properties = { type: "button", className: "button", textContent: "Download" };
  const button = element("button", properties);
  button.setAttribute("aria-label", `Download translation of ${job.name}`);
  button.addEventListener("click", () => download(job));
  job.actions.prepend(button);
}

function end(job, message, isError) {
  job.message.textContent = message;
  job.message.classList.toggle("is-error", isError);
  job.bar.hidden = true;
  job.cancel.title = "Remove";
  job.cancel.setAttribute("aria-label", `Remove ${job.name}`);
}

/** Download the result with fetch rather than a link, because a link cannot send the API key. */
async function download(job) {
  try {
    const response = await server.fileResult(job.id);
    saveAs(await response.blob(), responseFileName(response) ?? job.name);
  } catch (error) {
    status.showError(error);
  }
}

function responseFileName(response) {
  const disposition = response.headers.get("Content-Disposition") ?? "";
  const encoded = /filename\*=utf-8''([^;]+)/i.exec(disposition)?.[1];
  if (encoded) return decodeURIComponent(encoded);
  return /filename="([^"]+)"/i.exec(disposition)?.[1];
}

function remove(job) {
  job.removed = true;
  job.item.remove();
  if (job.id) server.deleteFile(job.id).catch(() => {}); // it may be gone already
  $("file").focus();
}

export function start() {
  tabs.start();
  const input = $("file");
  input.addEventListener("change", () => {
    [...input.files].forEach(add);
    input.value = "";
  });
  const dropZone = $("drop-zone");
  for (const type of ["dragover", "dragleave", "drop"]) {
    dropZone.addEventListener(type, (event) => {
      event.preventDefault();
      dropZone.classList.toggle("is-over", type === "dragover");
      if (type === "drop") [...event.dataTransfer.files].forEach(add);
    });
  }
}
