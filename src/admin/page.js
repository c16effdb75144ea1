// Refreshes the page every five seconds, and while somebody searches. The page is complete without
// this script. Only what differs is changed, so that selected text, the scroll position and open
// details stay.
"use strict";
const INTERVAL = 5000; // milliseconds
const SEARCH_DELAY = 200; // milliseconds
const TIMEOUT = 10000; // milliseconds

// Makes the element `old` equal to `fresh`. A child with an id is found by its id, others by their
// position.
function update(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const isOpen = old.localName === "details" && name === "open";
    if (!fresh.hasAttribute(name) && !isOpen) old.removeAttribute(name);
  }
  const kept = new Set([...fresh.children].map(({ id }) => id).filter(Boolean));
  const known = new Map([...old.children].map((child) => [child.id, child]));
  const isGone = (node) => !kept.has(node.id);
  let next = old.firstChild;
  for (const child of fresh.childNodes) {
    while (next?.id && isGone(next)) next = remove(next);
    const same = child.id && next?.id !== child.id ? known.get(child.id) : next;
    while (same && next !== same && isGone(next)) next = remove(next);
    if (same?.nodeName !== child.nodeName || same.id !== child.id) {
      old.insertBefore(document.importNode(child, true), next);
      continue;
    }
    if (same === next) next = next.nextSibling;
    else old.insertBefore(same, next);
    if (same.nodeType === Node.ELEMENT_NODE) update(same, child);
    else if (same.data !== child.data) same.data = child.data;
  }
  while (next) next = remove(next);
}

function remove(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

// Calls `change` and selects the same text again, because a row that moves loses its selection.
function keepSelection(change) {
  const selection = getSelection();
  const { anchorNode, anchorOffset, focusNode, focusOffset } = selection;
  const text = selection.toString();
  change();
  if (selection.toString() === text) return;
  const lengthOf = (node) => (node?.isConnected ? (node.length ?? node.childNodes.length) : -1);
  if (anchorOffset <= lengthOf(anchorNode) && focusOffset <= lengthOf(focusNode)) {
    selection.setBaseAndExtent(anchorNode, anchorOffset, focusNode, focusOffset);
  }
}

async function refresh() {
  const query = location.search;
  try {
    const options = { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) };
    const response = await fetch("/" + query, options);
    if (!response.ok) throw new Error(response.statusText);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (query !== location.search) return; // the response to an earlier search
    keepSelection(() => update(document.querySelector("main"), page.querySelector("main")));
    document.title = page.title;
  } catch {
    document.title = "keygate (no response)";
    document.querySelector("main").className = "old"; // until the next response
    const attention = document.querySelector("#attention");
    attention.className = "bad";
    attention.textContent = "No response. The rest of the page is old.";
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
    const parameters = new URLSearchParams(location.search);
    if (target.value) parameters.set("q", target.value);
    else parameters.delete("q");
    const query = parameters.size ? "?" + parameters : "";
    history.replaceState(null, "", "/" + query + location.hash);
    refresh();
  }, SEARCH_DELAY);
});
setTimeout(repeat, INTERVAL);
