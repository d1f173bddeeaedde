// Trees of elements as the server sends them: [name, {attributes}, child, ...]; a text is itself.
// Text is set as text and never parsed: nothing that a rank, the Lighthouse or a person said can
// become markup. Names of elements and attributes are ours; others are left out all the same.

const ELEMENTS = new Set([
  "a", "b", "button", "code", "dd", "details", "div", "dl", "dt", "h1", "h2", "h3", "label", "li", "meter",
  "ol", "p", "section", "span", "strong", "summary", "table", "tbody", "td", "th", "thead", "time",
  "tr", "ul",
]);
const ATTRIBUTES = /^(id|class|title|scope|type|value|disabled|role|aria-[a-z]+|data-[a-z]+)$/;
const KEPT = new Set(["open", "tabindex", "hidden"]); // what a person or a script has set

function allowed(name, value) {
  return name === "href" ? /^(\/(?!\/)|https?:\/\/)/.test(value) : ATTRIBUTES.test(name);
}

export function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const [name, attributes, ...children] = tree;
  const made = document.createElement(ELEMENTS.has(name) ? name : "span");
  for (const [key, value] of Object.entries(attributes)) {
    if (allowed(key, value)) made.setAttribute(key, value);
  }
  for (const child of children) made.append(build(child));
  return made;
}

// Makes an element what the tree says and keeps what need not change: focus, selection, what a
// person has folded out.
export function patch(element, tree) {
  const [name, attributes, ...children] = tree;
  if (element.localName !== name) {
    element.replaceWith(build(tree));
    return;
  }
  for (const { name: known } of [...element.attributes]) {
    if (!(known in attributes) && !KEPT.has(known)) element.removeAttribute(known);
  }
  for (const [key, value] of Object.entries(attributes)) {
    if (allowed(key, value) && element.getAttribute(key) !== value) element.setAttribute(key, value);
  }
  if (!("data-items" in attributes) && !("data-own" in attributes)) patchChildren(element, children);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function patchChildren(parent, trees) {
  const wanted = new Set(trees.map((tree) => tree[1]?.["data-key"]).filter((key) => key !== undefined));
  const known = new Map();
  for (const node of [...parent.childNodes]) {
    const key = keyOf(node);
    if (key === null) continue;
    if (wanted.has(key)) known.set(key, node);
    else node.remove(); // first, so that the others need not move: who moves loses the focus
  }
  let at = parent.firstChild;
  for (const tree of trees) at = place(parent, at, tree, known);
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Puts one child before `at`, and says what comes after it.
function place(parent, at, tree, known) {
  if (typeof tree === "string") {
    if (at?.nodeType === Node.TEXT_NODE) {
      if (at.data !== tree) at.data = tree;
      return at.nextSibling;
    }
    parent.insertBefore(build(tree), at);
    return at;
  }
  const key = tree[1]["data-key"];
  const found = key === undefined ? null : known.get(key);
  if (found) {
    known.delete(key);
    const next = found === at ? at.nextSibling : at;
    if (found !== at) parent.insertBefore(found, at);
    patch(found, tree);
    return next;
  }
  if (key === undefined && at && keyOf(at) === null && at.localName === tree[0]) {
    const next = at.nextSibling;
    patch(at, tree);
    return next;
  }
  parent.insertBefore(build(tree), at);
  return at;
}
