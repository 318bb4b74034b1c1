// Sets the theme before anything is drawn; the rest of the page is in app.js.
"use strict";
try {
  const theme = localStorage.getItem("baton-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No storage here: the system's theme holds.
}
