// Requests to the REST API with the login's CSRF token, and short messages to the person.

export function token() {
  return document.querySelector('meta[name="csrf-token"]')?.content || "";
}

export async function request(method, address) {
  let response;
  try {
    response = await fetch(address, { method, headers: { "X-CSRF-Token": token() } });
  } catch {
    throw new Error("The service does not answer: check the connection and try again.");
  }
  const content = await response.json().catch(() => null);
  if (response.status === 401) throw new Error("Your login has ended: load the page again to log in.");
  if (!response.ok) throw new Error(content?.detail || `The service answered ${response.status}.`);
  return content;
}

export function toast(text, isError = false) {
  const place = document.getElementById("toasts");
  const note = document.createElement("p");
  note.className = isError ? "toast toast-bad" : "toast";
  note.textContent = text;
  place.append(note);
  setTimeout(() => note.remove(), isError ? 10000 : 4000);
}
