// Text or files.

import { $, focusOne } from "./dom.js";

const TABS = [$("tab-text"), $("tab-files")];

function show(tab) {
  for (const one of TABS) {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = one !== tab;
  }
}

export function start() {
  for (const tab of TABS) {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = TABS.find((one) => one !== tab);
      show(other);
      focusOne(TABS, other);
    });
  }
}
