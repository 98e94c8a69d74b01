// Light or dark theme: the system's until the user chooses one.
// Loaded as a classic script before the first paint, so that the page does not flash.
"use strict";
(() => {
  const STORAGE_KEY = "rnnsearch-theme";
  const root = document.documentElement;
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try {
      return localStorage.getItem(STORAGE_KEY);
    } catch {
      return null; // storage is blocked
    }
  }

  const current = () => root.dataset.theme ?? (systemDark.matches ? "dark" : "light");

  function update() {
    root.dataset.shown = current();
    const pressed = String(current() === "dark");
    document.getElementById("theme")?.setAttribute("aria-pressed", pressed);
  }

  function toggle() {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(STORAGE_KEY, root.dataset.theme);
    } catch {
      // Storage is blocked: the choice lasts until the page is closed.
    }
    update();
  }

  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  update();
  systemDark.addEventListener("change", update);
  document.addEventListener("DOMContentLoaded", () => {
    update();
    document.getElementById("theme").addEventListener("click", toggle);
  });
})();
