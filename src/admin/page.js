// Refreshes the page every five seconds, and while somebody searches. The page is complete without
// this script. Only what differs is changed, so that selected text, the scroll position and open
// details stay.
"use strict";
const INTERVAL = 5000; // milliseconds
const SEARCH_DELAY = 200; // milliseconds

// Makes the element `old` equal to `fresh`.
function update(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !(old.localName === "input" && name === "value")) {
      old.setAttribute(name, value);
    }
  }
  for (const { name } of [...old.attributes]) {
    const isOpen = old.localName === "details" && name === "open";
    if (!fresh.hasAttribute(name) && !isOpen) old.removeAttribute(name);
  }
  const ids = new Set([...fresh.children].map((child) => child.id).filter(Boolean));
  let next = old.firstChild;
  for (const child of fresh.childNodes) {
    // Elements with an id that is gone make way for those behind them.
    while (next?.id && !ids.has(next.id)) next = remove(next);
    if (child.id && next?.id !== child.id) {
      const known = [...old.children].find((it) => it.id === child.id);
      if (known) while (next && next !== known && !ids.has(next.id)) next = remove(next);
      if (next !== known || !known) {
        old.insertBefore(known ?? document.importNode(child, true), next);
        if (known) update(known, child);
        continue;
      }
    }
    if (!next || next.id !== (child.id ?? undefined) || next.nodeName !== child.nodeName) {
      old.insertBefore(document.importNode(child, true), next);
      continue;
    }
    if (child.nodeType === Node.ELEMENT_NODE) update(next, child);
    else if (next.data !== child.data) next.data = child.data;
    next = next.nextSibling;
  }
  while (next) next = remove(next);
}

function remove(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

async function refresh() {
  try {
    const response = await fetch("/" + location.search, { cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    update(document.querySelector("main"), page.querySelector("main"));
    document.title = page.title;
  } catch {
    document.title = "keygate (no response)";
  }
}

async function repeat() {
  if (!document.hidden) await refresh();
  setTimeout(repeat, INTERVAL);
}

let search;
document.addEventListener("input", ({ target }) => {
  clearTimeout(search);
  search = setTimeout(() => {
    const query = target.value ? "?" + new URLSearchParams({ q: target.value }) : "";
    history.replaceState(null, "", "/" + query + location.hash);
    refresh();
  }, SEARCH_DELAY);
});
setTimeout(repeat, INTERVAL);
