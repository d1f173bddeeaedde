// Makes elements from trees: [name, {attributes}, child, ...]; text stays text, and is never parsed.
export function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const [name, attributes, ...children] = tree;
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  for (const child of children) made.append(build(child));
  return made;
}
