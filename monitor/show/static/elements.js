// Elements of ours from trees: [name, {attributes}, child, ...]; a text is itself, and never parsed.
export function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const [name, attributes, ...children] = tree;
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  for (const child of children) made.append(build(child));
  return made;
}
