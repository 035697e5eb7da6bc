// Colours before the first paint: as the system has them, or as chosen here before.
"use strict";
(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("felix-theme");
  } catch {
    // storage may be forbidden: then the system decides
  }
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
})();
