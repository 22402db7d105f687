// Loaded before the first paint: the theme that was chosen here before, and the mark that scripts run.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("kernelwright-theme");
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  } catch {
    // Storage is switched off: the system's theme.
  }
})();
