// Makes an open page equal to the one that the monitor wrote, with every text escaped.
// What need not change stays the same element, so that focus, selection, scrolling and unfolded
// details are kept.

import { localise } from "./zone.js";

const KEPT = new Set(["open", "tabindex", "hidden"]); // what a person or a script has set

// A document from markup; nothing in it runs, and the page's policy forbids it too.
export function parse(markup) {
  const made = new DOMParser().parseFromString(markup, "text/html");
  localise(made);
  return made;
}

const shown = new WeakMap(); // section -> what it was made equal to

// Makes an element equal to another. What a script draws is left alone.
export function patch(element, wanted) {
  if (element.parentNode.localName === "main") {
    if (shown.get(element)?.isEqualNode(wanted)) return;
    shown.set(element, wanted.cloneNode(true));
  }
  if (element.localName !== wanted.localName) {
    element.replaceWith(wanted);
    return;
  }
  for (const { name } of [...element.attributes]) {
    if (!wanted.hasAttribute(name) && !KEPT.has(name)) element.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (!KEPT.has(name) && element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  if (!wanted.hasAttribute("data-own")) patchChildren(element, wanted);
}

// Sections have an id.
function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return null;
  return node.getAttribute("data-key") ?? (node.parentNode.localName === "main" ? node.id : null);
}

function patchChildren(parent, wanted) {
  const keys = new Set([...wanted.children].map(keyOf));
  const known = new Map();
  for (const node of [...parent.childNodes]) {
    const key = keyOf(node);
    if (key === null) continue;
    if (keys.has(key) && !known.has(key)) known.set(key, node);
    else node.remove(); // first, so that others need not move: moving loses the focus
  }
  let at = parent.firstChild;
  for (const node of [...wanted.childNodes]) at = place(parent, at, node, known);
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Drops nodes without a key before a child and returns it; `at` if a node with a key is between.
function skipTo(child, at) {
  let to = at;
  while (to && to !== child && keyOf(to) === null) to = to.nextSibling;
  if (to !== child) return at;
  while (at !== child) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  return child;
}

// Puts one child before `at`, and returns what follows it.
function place(parent, at, node, known) {
  const key = keyOf(node);
  const found = key === null ? null : known.get(key);
  if (found) {
    known.delete(key);
    at = skipTo(found, at);
    const next = found === at ? at.nextSibling : at;
    if (found !== at) parent.insertBefore(found, at);
    patch(found, node);
    return next;
  }
  if (key === null && at && keyOf(at) === null && at.nodeName === node.nodeName) {
    const next = at.nextSibling;
    if (node.nodeType === Node.ELEMENT_NODE) patch(at, node);
    else if (at.data !== node.data) at.data = node.data;
    return next;
  }
  parent.insertBefore(node, at);
  return at;
}
