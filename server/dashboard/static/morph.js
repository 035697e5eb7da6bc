// Make an element's content equal to another's with the fewest changes, so that focus, selection,
// scroll positions, ticked boxes and opened details stay. Children are matched by `data-key` or
// `id` where they have one, else by place.

export function morph(from, to) {
  attributes(from, to);
  const keyed = new Map();
  for (const child of from.children) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  let place = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    let found = key ? keyed.get(key) : place;
    if (!key && found && keyOf(found)) found = null;
    if (found && found.nodeName === wanted.nodeName) {
      if (found !== place) from.insertBefore(found, place);
      else place = place.nextSibling;
      if (wanted.nodeType === Node.ELEMENT_NODE) morph(found, wanted);
      else if (found.nodeValue !== wanted.nodeValue) found.nodeValue = wanted.nodeValue;
    } else {
      from.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// What people change by themselves stays as they left it.
const KEPT = new Set(["open", "checked", "value", "selected"]);

function attributes(from, to) {
  const own = /^(INPUT|TEXTAREA|SELECT|OPTION|DETAILS)$/.test(from.nodeName);
  for (const { name, value } of [...to.attributes]) {
    if (own && KEPT.has(name)) continue;
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (own && KEPT.has(name)) continue;
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  }
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
}
