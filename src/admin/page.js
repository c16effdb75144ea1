// Refreshes the page every five seconds. The page is complete without this script.
"use strict";
const INTERVAL = 5000; // milliseconds

async function refresh() {
  if (!document.hidden) {
    try {
      const response = await fetch("/", { cache: "no-store" });
      if (!response.ok) throw new Error(response.statusText);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.title = page.title;
    } catch {
      document.title = "keygate (no response)";
    }
  }
  setTimeout(refresh, INTERVAL);
}

setTimeout(refresh, INTERVAL);
