// The page is whole without this; with it, it stays up to date.
"use strict";
const PAUSE = 5000; // milliseconds

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.title = page.title;
    } catch {
      document.title = "keygate (no answer)";
    }
  }
  setTimeout(refresh, PAUSE);
}

setTimeout(refresh, PAUSE);
