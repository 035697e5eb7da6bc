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
  for (const target of [...to.childNodes]) {
    const key = keyOf(target);
    let match = key ? keyed.get(key) : place;
    if (!key && match && keyOf(match)) match = null;
    if (match && match.nodeName === target.nodeName) {
      if (match !== place) from.insertBefore(match, place);
      else place = place.nextSibling;
      if (target.nodeType === Node.ELEMENT_NODE) morph(match, target);
      else if (match.nodeValue !== target.nodeValue) match.nodeValue = target.nodeValue;
    } else {
      from.insertBefore(document.importNode(target, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// What people change by themselves stays as they left it.
const USER_STATE = new Set(["open", "checked", "value", "selected"]);

function attributes(from, to) {
  const isControl = /^(INPUT|TEXTAREA|SELECT|OPTION|DETAILS)$/.test(from.nodeName);
  for (const { name, value } of [...to.attributes]) {
    if (isControl && USER_STATE.has(name)) continue;
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (isControl && USER_STATE.has(name)) continue;
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  }
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
}
