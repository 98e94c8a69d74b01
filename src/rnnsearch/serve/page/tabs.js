// The tabs "Text" and "Files".

import { $, focusItem } from "./dom.js";

const tabs = [$("tab-text"), $("tab-files")];
const panelOf = (tab) => $(tab.getAttribute("aria-controls"));

function select(selected) {
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", String(tab === selected));
    tab.tabIndex = tab === selected ? 0 : -1;
    panelOf(tab).hidden = tab !== selected;
  }
}

export function start() {
  $("tabs").hidden = false;
  for (const tab of tabs) {
    panelOf(tab).setAttribute("role", "tabpanel");
    panelOf(tab).setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs.find((one) => one !== tab);
      select(other);
      focusItem(tabs, other);
    });
  }
}
