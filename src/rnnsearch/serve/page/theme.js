// Light or dark: the system's choice until the reader makes one. Loaded before the page is painted, so that nothing flashes.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem("rnnsearch-theme");
    } catch {
      return null; // storage may be forbidden
    }
  };
  const current = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

  function show() {
    root.dataset.shown = current();
    document.getElementById("theme")?.setAttribute("aria-pressed", String(current() === "dark"));
  }

  function toggle() {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("rnnsearch-theme", root.dataset.theme);
    } catch {
      // the choice then lasts as long as the page
    }
    show();
  }

  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  show();
  dark.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", toggle);
  });
})();
